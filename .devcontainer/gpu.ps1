# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
# What gpu.sh does, for a Windows host without a POSIX shell: asks the container engine how it passes on a GPU, and writes
# the answer into gpu.local.yml and .env. To choose for yourself, set in .env or in the environment:
#   DEVKIT_GPU      cpu
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
    return 'cpu', 'this dev container is planned for the CPU'
}

$lines = @()
if (Test-Path -LiteralPath $envFile -PathType Leaf) {
    $text = [IO.File]::ReadAllText($envFile, $bytes).TrimEnd("`n")
    if ($text) { $lines = @($text -split "`n" | Where-Object { -not $_.EndsWith($mark) }) }
}
$mode, $why = Get-Mode
$chosen = Get-UsersValue 'DEVKIT_GPU' $lines
if ($chosen -and 'cpu' -notcontains $chosen) {
    $mode = 'cpu'; $why = "DEVKIT_GPU=$chosen is none of cpu"
} elseif ($chosen) {
    $mode = $chosen; $why = 'as set'
}
Write-Output "devkit: DEVKIT_GPU=${mode}: $why"
$found = [ordered] @{}
$hash = [Security.Cryptography.SHA256]::Create().ComputeHash([Text.Encoding]::UTF8.GetBytes($PSScriptRoot))
$number = [BitConverter]::ToUInt32($hash, 0) % 1000000
$found['DEVKIT_PROJECT'] = 'devkit-' + $number
$settings = foreach ($name in $found.Keys) {
    if (-not ($lines -match "^(export )?$name=")) { "$name=$($found[$name])$mark" }
}
$text = (@($lines) + @($settings)) -join "`n"
$new = "$envFile.$PID"
[IO.File]::WriteAllText($new, "$text`n", $bytes)
Move-Item -LiteralPath $new -Destination $envFile -Force
exit 0
