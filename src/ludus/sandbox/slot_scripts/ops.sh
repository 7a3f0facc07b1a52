# File and process operations inside a slot, independent of the state of the agent's shell:
# bash -p ops.sh JOBS OPERATION ARGUMENT...
# Errors are written to the end of stderr in the wording of the C library. The host parses them there.

jobs=$1 op=$2
shift 2

case $op in
start) ;; # inherits everything, as a command would
*)
    export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    unset -v TAR_OPTIONS POSIXLY_CORRECT _POSIX2_VERSION QUOTING_STYLE LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT
    ;;
esac
umask 022

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

case $op in
read) # PATH BYTES
    [[ -p $1 || -S $1 || -c $1 ]] && fail 'Operation not supported' # reading some of them never ends
    exec head -c "$2" -- "$1"
    ;;
write) # PATH, content on stdin
    path=$1
    [[ -L $path ]] && path=$(readlink -f -- "$path")
    [[ -d $path ]] && fail 'Is a directory'
    [[ -e $path && ! -f $path ]] && fail 'Operation not supported'
    [[ -e $path && ! -w $path ]] && fail 'Permission denied'
    mkdir -p -- "${path%/*}/" || exit
    fresh=$path.ludus-$$
    if cat >"$fresh" && { [[ ! -e $path ]] || chmod "$(stat -c %a -- "$path")" "$fresh"; } && mv -f -- "$fresh" "$path"; then
        exit 0
    fi
    rm -f -- "$fresh"
    exit 1
    ;;
folder) # PATH -> whether it is a folder
    [[ -d $1 ]]
    ;;
pack | layer) # PATH FROM BYTES -> that part of an archive of a file or folder; FROM counts from 1
    [[ -e $1 ]] || fail 'No such file or directory'
    [[ -L $1 && ! -d $1 ]] && set -- "$(readlink -f -- "$1")" "${@:2}"
    [[ -r $1 ]] || fail 'Permission denied'
    if [[ -d $1 ]]; then
        cd -- "$1" || exit
        set -- "$PWD" . "${@:2}"
    else
        cd -- "${1%/*}/" || exit
        set -- "$PWD" "./${1##*/}" "${@:2}"
    fi
    options=()
    [[ $op == layer ]] && options=(--format=pax --xattrs '--xattrs-include=user.*')
    tar "${options[@]}" -cf - -- "$2" 2>/dev/null | tail -c "+$3" | head -c "$4"
    case ${PIPESTATUS[0]} in
    0 | 1 | 2 | 141) ;; # 1, 2: a file could not be read; 141: the rest was not needed
    *) fail 'Input/output error' ;;
    esac
    ;;
unpack | replace) # PATH, archive on stdin
    mkdir -p -- "$1" || exit
    if [[ $op == replace ]]; then
        find "$1" -mindepth 1 -delete 2>/dev/null || { chmod -R u+rwX -- "$1" && find "$1" -mindepth 1 -delete; } || exit
    fi
    tar -xof - -C "$1" 2>&1 >/dev/null |
        sed -e '/: Exiting with failure/d' -e 's/Wrote only .* bytes$/No space left on device/' >&2
    exit "${PIPESTATUS[0]}"
    ;;
start) # ID COMMAND
    mkdir -p -m 700 -- "$jobs/$1" && mkfifo -m 600 -- "$jobs/$1/in" || exit
    setsid "$BASH" -c '
        trap : TERM INT HUP # outlive the command, to record its exit code
        exec <>"$1/in"      # before the pid is there: what is sent from then on waits in the pipe
        printf "%d" "$$" >"$1/pid"
        "$BASH" -c "$2" >"$1/log" 2>&1
        printf "%d" $? >"$1/exit.new" && mv -f -- "$1/exit.new" "$1/exit"
    ' bash "$jobs/$1" "$2" </dev/null >/dev/null 2>&1 &
    until [[ -s $jobs/$1/pid ]]; do
        kill -0 $! || fail 'No child processes'
        sleep 0.002
    done
    ;;
code) # ID -> exit code of a process that can no longer run
    exec cat -- "$jobs/$1/exit"
    ;;
poll) # ID -> exit code, or nothing while it runs
    if [[ ! -f $jobs/$1/exit ]]; then
        read -r pid <"$jobs/$1/pid"
        kill -0 "$pid" 2>/dev/null && exit
        [[ -f $jobs/$1/exit ]] || fail 'killed'
    fi
    cat -- "$jobs/$1/exit"
    ;;
log) # ID BYTES
    [[ -f $jobs/$1/log ]] || fail 'No such file or directory'
    exec tail -c "$2" -- "$jobs/$1/log"
    ;;
send) # ID, data on stdin
    exec cat 1<>"$jobs/$1/in"
    ;;
kill) # ID
    [[ -f $jobs/$1/exit ]] && exit
    read -r pid <"$jobs/$1/pid"
    kill -TERM -- "-$pid" || exit 0
    for _ in {1..50}; do
        kill -0 -- "-$pid" || exit 0
        sleep 0.02
    done
    kill -KILL -- "-$pid"
    ;;
esac
