# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
# What gpu.sh does, for a Windows host without a POSIX shell: asks the container engine how it passes on a GPU, and writes
# the answer into gpu.local.yml and .env. To choose for yourself, set in .env or in the environment:
#   DEVKIT_GPU      cpu, nvidia, cdi, podman
#   DEVKIT_DEVICES  the GPUs to pass on: all, or such as 0,2 or MIG-...
# It needs the PowerShell of Windows and nothing else, and ends well: in doubt there is no GPU.

$ErrorActionPreference = 'SilentlyContinue'
$deadlineSeconds = 10
$mark = ' # gpu.sh'
$envFile = Join-Path $PSScriptRoot '.env'
$overlayFile = Join-Path $PSScriptRoot 'gpu.local.yml'
# Every byte is one character, so that lines in any encoding stay as they are.
$bytes = [Text.Encoding]::GetEncoding(28591)

# What a program printed, or nothing when it fails or takes too long.
function Get-Answer([string] $Program, [string] $Arguments) {
    $command = Get-Command $Program -CommandType Application | Select-Object -First 1
    if (-not $command) { return '' }
    $start = New-Object Diagnostics.ProcessStartInfo $command.Source, $Arguments
    $start.UseShellExecute = $false
    $start.RedirectStandardOutput = $true
    $start.RedirectStandardError = $true
    $start.RedirectStandardInput = $true
    $process = [Diagnostics.Process]::Start($start)
    $process.StandardInput.Close()
    $answer = $process.StandardOutput.ReadToEndAsync()
    # Read too, because a full pipe would stop the program.
    $null = $process.StandardError.ReadToEndAsync()
    if (-not $process.WaitForExit(1000 * $deadlineSeconds)) { $process.Kill(); return '' }
    if ($process.ExitCode -ne 0) { return '' }
    return $answer.Result
}

# What the user gives a variable, in the environment or else in .env.
function Get-UsersValue([string] $Name, [string[]] $Lines) {
    $set = [Environment]::GetEnvironmentVariable($Name)
    if ($set) { return $set.Trim() }
    foreach ($line in $Lines) {
        if ($line -match "^(export )?$Name=(.*)$") { $value = ($Matches[2] -replace ' #.*$', '') -replace '["''\s]', '' }
    }
    return $value
}

function Get-Mode {
    if ((Get-Answer 'nvidia-smi' '-L') -notlike '*GPU*') { return 'cpu', 'this host has no NVIDIA GPU' }
    $info = Get-Answer 'docker' 'info --format "{{json .}}"'
    $server = Get-Answer 'docker' 'version --format "{{json .Server}}"'
    if ($info -and $server -notlike '*Podman*') {
        if ($info -like '*"OperatingSystem":"Docker Desktop"*') { return 'nvidia', 'Docker Desktop passes on the NVIDIA GPU' }
        if ($info -like '*nvidia-container-runtime*') { return 'nvidia', 'the engine has the nvidia runtime' }
        if ($info -like '*"nvidia.com/gpu=all"*') { return 'cdi', 'the engine has CDI devices for the NVIDIA GPU' }
        return 'cpu', 'the engine has neither the nvidia runtime nor CDI devices'
    }
    $look = 'machine ssh "grep -l -s -F nvidia.com/gpu /etc/cdi/* /var/run/cdi/* || true"'
    if (Get-Answer 'podman' $look) { return 'podman', 'the Podman machine has a CDI specification of the NVIDIA GPU' }
    return 'cpu', 'no container engine with a way to the NVIDIA GPU was found'
}

# What Compose is asked for, as gpu.sh writes it.
function Get-Overlay([string] $Mode, [string] $Devices) {
    $prefix = if ($Mode -eq 'nvidia') { '' } else { 'nvidia.com/gpu=' }
    $names = ($Devices.Split(',') | ForEach-Object { "`"$prefix$_`"" }) -join ','
    $which = if ($Mode -eq 'nvidia' -and $Devices -eq 'all') { 'count: all' } else { "device_ids: [$names]" }
    $request = switch ($Mode) {
        'podman' { "    devices: [$names]`n    security_opt: [label=disable]" }
        default { "    deploy: {resources: {reservations: {devices: [{driver: $Mode, $which, capabilities: [gpu]}]}}}" }
    }
    return "services:`n  gpu:`n$request`n    environment: [DEVKIT_GPU=$Mode]`n"
}

$lines = @()
if (Test-Path -LiteralPath $envFile -PathType Leaf) {
    $text = [IO.File]::ReadAllText($envFile, $bytes).TrimEnd("`n")
    if ($text) { $lines = @($text -split "`n" | Where-Object { -not $_.EndsWith($mark) }) }
}
$mode, $why = Get-Mode
$chosen = Get-UsersValue 'DEVKIT_GPU' $lines
if ($chosen -and 'cpu', 'nvidia', 'cdi', 'podman' -notcontains $chosen) {
    $mode = 'cpu'; $why = "DEVKIT_GPU=$chosen is none of cpu, nvidia, cdi, podman"
} elseif ($chosen) {
    $mode = $chosen; $why = 'as set'
}
$devices = (Get-UsersValue 'DEVKIT_DEVICES' $lines) -replace '\s', ''
if (-not $devices) { $devices = 'all' }
$one = '([0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z-]+)'
$refused = $devices -cnotmatch "^(all|$one(,$one)*)$"
# Compose parts a device's name at its colons before Podman sees it.
$refused = $refused -or ($mode -eq 'podman' -and $devices -like '*:*')
if ($refused) { $mode = 'cpu'; $why = 'DEVKIT_DEVICES names no GPUs, so the container gets none' }
Write-Output "devkit: DEVKIT_GPU=${mode}: $why"
$found = [ordered] @{}
if ($mode -eq 'cpu') {
    Remove-Item -LiteralPath $overlayFile
} else {
    [IO.File]::WriteAllText($overlayFile, (Get-Overlay $mode $devices), $bytes)
    $found['DEVKIT_GPU_FILE'] = 'gpu.local'
}
$hash = [Security.Cryptography.SHA256]::Create().ComputeHash([Text.Encoding]::UTF8.GetBytes($PSScriptRoot))
$number = [BitConverter]::ToUInt32($hash, 0) % 1000000
$found['DEVKIT_PROJECT'] = 'quickstart-' + $number
$settings = foreach ($name in $found.Keys) {
    if (-not ($lines -match "^(export )?$name=")) { "$name=$($found[$name])$mark" }
}
$text = (@($lines) + @($settings)) -join "`n"
$new = "$envFile.$PID"
[IO.File]::WriteAllText($new, "$text`n", $bytes)
Move-Item -LiteralPath $new -Destination $envFile -Force
exit 0
