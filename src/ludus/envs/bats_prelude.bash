# What tests in the format of bats use. It is put before a test file (see bats.py) and runs in the bash of one test.

BATS_RUN_SKIPPED=true
BATS_TEST_DIRNAME=$PWD
BATS_TEST_TMPDIR=/tmp
BATS_TMPDIR=/tmp
status=0 output="" stderr="" lines=() stderr_lines=()
_ludus_secret=""

setup() { :; }
teardown() { :; }

_ludus_end() {
  local code=$?
  set +e
  teardown
  if [[ $code -eq 0 && -n $_ludus_secret ]]; then
    printf '\n%s passed\n' "$_ludus_secret"
  fi
  exit "$code"
}

skip() {
  printf 'skipped %s\n' "$*"
  exit 0
}

fail() {
  if (($#)); then printf '%s\n' "$*"; else cat -; fi
  return 1
}

bats_require_minimum_version() { :; }
bats_load_library() { load "$@"; }

load() {
  local name=${1##*/}
  name=${name%.bash}
  if [[ -n ${_ludus_files[$name]+x} ]]; then
    eval "${_ludus_files[$name]}"
  elif [[ -f $1 || -f $1.bash ]]; then
    printf 'load: %s is not among the hidden files\n' "$1"
    return 1
  fi
}

_ludus_split() {
  local -n _into=$1
  local _line _keep=$3
  _into=()
  while IFS= read -r _line || [[ -n $_line ]]; do
    if [[ -n $_line || $_keep -eq 1 ]]; then _into+=("$_line"); fi
  done <<< "$2"
}

run() {
  local wanted="" apart=0 keep=0 strict=0 errors
  while (($#)); do
    case $1 in
      -[0-9]*) wanted=${1#-} ;;
      !) wanted="not 0" ;;
      --separate-stderr) apart=1 ;;
      --keep-empty-lines) keep=1 ;;
      --) shift; break ;;
      *) break ;;
    esac
    shift
  done
  case $- in *e*) strict=1 ;; esac
  set +e
  if ((apart)); then
    errors=$(mktemp)
    output=$("$@" 2> "$errors")
    status=$?
    stderr=$(< "$errors")
    rm -f "$errors"
    _ludus_split stderr_lines "$stderr" "$keep"
  else
    output=$("$@" 2>&1)
    status=$?
  fi
  _ludus_split lines "$output" "$keep"
  if ((strict)); then set -e; fi
  case $wanted in
    "") return 0 ;;
    "not 0") [[ $status -ne 0 ]] || fail "run: the command should have failed. Output: $output" ;;
    *) [[ $status -eq $wanted ]] || fail "run: exit code $status, not $wanted. Output: $output" ;;
  esac
}

assert() { "$@" || fail "assertion failed: $*"; }
refute() { if "$@"; then fail "should have failed: $*"; fi; }
assert_equal() { [[ $1 == "$2" ]] || fail "found: $1"$'\n'"expected: $2"; }
assert_not_equal() { [[ $1 != "$2" ]] || fail "equal: $1"; }
assert_success() { [[ $status -eq 0 ]] || fail "exit code $status. Output: $output"; }

assert_failure() {
  if [[ $status -eq 0 ]]; then fail "it should have failed. Output: $output"; return; fi
  [[ -z ${1-} || $status -eq $1 ]] || fail "exit code $status, not $1. Output: $output"
}

_ludus_matches() {
  case $1 in
    partial) [[ $2 == *"$3"* ]] ;;
    regexp) [[ $2 =~ $3 ]] ;;
    *) [[ $2 == "$3" ]] ;;
  esac
}

_ludus_read_options() {
  mode=exact number="" text=""
  while (($#)); do
    case $1 in
      -p | --partial) mode=partial ;;
      -e | --regexp) mode=regexp ;;
      -n | --index) number=$2; shift ;;
      - | --stdin) text=$(cat -); return ;;
      --) shift; text=${1-}; return ;;
      *) text=$1; return ;;
    esac
    shift
  done
}

assert_output() {
  local mode number text
  if ((!$#)); then
    if [[ -t 0 ]]; then [[ -n $output ]] || fail "no output"; return; fi
    text=$(cat -)
    if [[ -z $text ]]; then [[ -n $output ]] || fail "no output"; return; fi
    set -- "$text"
  fi
  _ludus_read_options "$@"
  _ludus_matches "$mode" "$output" "$text" || fail "output: $output"$'\n'"expected ($mode): $text"
}

refute_output() {
  local mode number text
  if ((!$#)); then [[ -z $output ]] || fail "output: $output"; return; fi
  _ludus_read_options "$@"
  if _ludus_matches "$mode" "$output" "$text"; then fail "output: $output"$'\n'"not expected ($mode): $text"; fi
}

_ludus_has_line() {
  local line
  if [[ -n $number ]]; then
    _ludus_matches "$mode" "${lines[$number]-}" "$text"
    return
  fi
  for line in "${lines[@]}"; do
    if _ludus_matches "$mode" "$line" "$text"; then return 0; fi
  done
  return 1
}

assert_line() {
  local mode number text
  _ludus_read_options "$@"
  _ludus_has_line || fail "output: $output"$'\n'"expected line ($mode): $text"
}

refute_line() {
  local mode number text
  _ludus_read_options "$@"
  if _ludus_has_line; then fail "output: $output"$'\n'"not expected line ($mode): $text"; fi
}
