# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
#
# What gpu.sh does, for a Windows host without a POSIX shell: asks the container engine how it can pass on a GPU, and
# writes the answer into .env beside this file, where Compose reads it. To choose for yourself, set these in the
# environment, or in .env outside the marked lines:
#   DEVKIT_GPU      cpu
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
    return 'cpu', 'this dev container is planned for the CPU'
}

$lines = @(Get-UsersLine)
$mode, $why = Get-Mode
$chosen = Get-UsersValue 'DEVKIT_GPU' $lines
if ($chosen) { $mode = $chosen; $why = 'DEVKIT_GPU is set' }
$overlay = ''
if (-not (Test-Path -LiteralPath (Join-Path $PSScriptRoot "gpu.$mode.yml"))) {
    Write-Output "devkit: DEVKIT_GPU=$mode is none of cpu; there is no GPU"
    $mode = 'cpu'
} else {
    Write-Output "devkit: DEVKIT_GPU=${mode}: $why"
}
$hash = [Security.Cryptography.SHA256]::Create().ComputeHash([Text.Encoding]::UTF8.GetBytes($PSScriptRoot))
$number = [BitConverter]::ToUInt32($hash, 0) % 1000000
$found = [ordered] @{ DEVKIT_GPU = $mode; DEVKIT_OVERLAY = $overlay; DEVKIT_PROJECT = 'devkit-' + $number }
$settings = foreach ($name in $found.Keys) {
    if ($found[$name] -and -not ($lines -match "^(export )?$name=")) { "$name=$($found[$name])" }
}
$text = (@($lines) + $begin + @($settings) + $end) -join "`n"
$new = "$envFile.$PID.new"
[IO.File]::WriteAllText($new, "$text`n", $bytes)
Move-Item -LiteralPath $new -Destination $envFile -Force
exit 0
