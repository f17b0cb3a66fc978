# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
#
# What gpu.sh does, for a Windows host without a POSIX shell: asks the container engine how it can pass on a GPU, and
# writes the answer into .env beside this file, where Compose reads it. To choose for yourself, set these in the
# environment, or in .env outside the marked lines:
#   DEVKIT_GPU      cpu, nvidia, cdi, podman
#   DEVKIT_DEVICES  the GPUs to pass on, such as 0,2 or MIG-...; without it those of devkit.toml, or all
#
# It needs the PowerShell of Windows and nothing else, and it always ends well: when in doubt, there is no GPU.

$ErrorActionPreference = 'SilentlyContinue'
$deadlineSeconds = 10
$begin = '# devkit: found by gpu.sh and written anew at every start'
$end = '# devkit: end'
$envFile = Join-Path $PSScriptRoot '.env'
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

# The user's lines of .env: everything outside of the marked ones.
function Get-UsersLine {
    if (-not (Test-Path -LiteralPath $envFile -PathType Leaf)) { return }
    $inside = $false
    $text = [IO.File]::ReadAllText($envFile, $bytes).TrimEnd("`n")
    if (-not $text) { return }
    foreach ($line in $text -split "`n") {
        if ($line.StartsWith($begin)) { $inside = $true }
        elseif ($line.StartsWith($end)) { $inside = $false }
        elseif (-not ($inside -and $line.StartsWith('DEVKIT_'))) { $line }
    }
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

# The line of an overlay that names the GPUs.
function Get-Naming([string] $Mode, [string] $Devices) {
    switch ($Mode) {
        'nvidia' { $every = 'count: all'; $some = 'device_ids: [%s]'; $each = '"%s"' }
        'cdi' { $every = 'device_ids: ["nvidia.com/gpu=all"]'; $some = 'device_ids: [%s]'; $each = '"nvidia.com/gpu=%s"' }
        'podman' { $every = 'devices: ["nvidia.com/gpu=all"]'; $some = 'devices: [%s]'; $each = '"nvidia.com/gpu=%s"' }
    }
    if ($Devices -eq 'all' -or -not $every) { return $every }
    $list = $Devices.Split(',') | ForEach-Object { $each.Replace('%s', $_) }
    return $some.Replace('%s', ($list -join ','))
}

# This host's own overlays, with its GPUs in the place of the project's; none of them where the names are wrong.
function Write-Selected([string] $Devices, [bool] $Refused) {
    foreach ($mode in 'cpu', 'nvidia', 'cdi', 'podman') {
        $from = if ($Refused) { 'cpu' } else { $mode }
        $naming = Get-Naming $from $Devices
        $text = [IO.File]::ReadAllText((Join-Path $PSScriptRoot "gpu.$from.yml"), $bytes)
        $lines = $text -split "`n" | ForEach-Object {
            if ($_ -match '^( *)\S.*  # DEVKIT_DEVICES ') { $Matches[1] + $naming } else { $_ }
        }
        $head = "# Made by gpu.ps1 from gpu.$from.yml, for DEVKIT_DEVICES.`n"
        [IO.File]::WriteAllText((Join-Path $PSScriptRoot "gpu.$mode.local.yml"), $head + ($lines -join "`n"), $bytes)
    }
}

$lines = @(Get-UsersLine)
$mode, $why = Get-Mode
$chosen = Get-UsersValue 'DEVKIT_GPU' $lines
if ($chosen) { $mode = $chosen; $why = 'DEVKIT_GPU is set' }
$overlay = ''
$devices = (Get-UsersValue 'DEVKIT_DEVICES' $lines) -replace '\s', ''
if ($devices) {
    $one = '([0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z-]+)'
    $refused = $devices -cnotmatch "^(all|$one(,$one)*)$"
    # Compose parts a device's name at its colons before Podman sees it.
    $refused = $refused -or ($mode -eq 'podman' -and $devices -like '*:*')
    if ($refused) { $mode = 'cpu'; $why = 'DEVKIT_DEVICES names no GPUs, so the container gets none' }
    Write-Selected $devices $refused
    $overlay = '.local'
} else {
    Remove-Item (Join-Path $PSScriptRoot 'gpu.*.local.yml')
}
if (-not (Test-Path -LiteralPath (Join-Path $PSScriptRoot "gpu.$mode.yml"))) {
    Write-Output "devkit: DEVKIT_GPU=$mode is none of cpu, nvidia, cdi, podman; there is no GPU"
    $mode = 'cpu'
} else {
    Write-Output "devkit: DEVKIT_GPU=${mode}: $why"
}
$hash = [Security.Cryptography.SHA256]::Create().ComputeHash([Text.Encoding]::UTF8.GetBytes($PSScriptRoot))
$number = [BitConverter]::ToUInt32($hash, 0) % 1000000
$found = [ordered] @{ DEVKIT_GPU = $mode; DEVKIT_OVERLAY = $overlay; DEVKIT_PROJECT = 'quickstart-' + $number }
$settings = foreach ($name in $found.Keys) {
    if ($found[$name] -and -not ($lines -match "^(export )?$name=")) { "$name=$($found[$name])" }
}
$text = (@($lines) + $begin + @($settings) + $end) -join "`n"
$new = "$envFile.$PID.new"
[IO.File]::WriteAllText($new, "$text`n", $bytes)
Move-Item -LiteralPath $new -Destination $envFile -Force
exit 0
