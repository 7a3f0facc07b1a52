# The first process of a slot: keeps one inner shell running and starts the next one when it exits.
#
#   supervisor.sh LIB IO HOME NAME COMMAND_FD STATUS_FD "CGROUP_FD..." ULIMIT...
#
# Descriptors here and in the inner shell: 3 commands in, 4 status out, 5 and 6 the commands' stdout and stderr. Status
# records are enclosed in NULs: "x NAME CODE" reports that the inner shell of that name has exited. The host replies with
# "go:NAME:DIR" to start the next one, or with "sweep:NAME:DIR" to kill every other process of the slot first.

lib=$1 io=$2 home=$3 name=$4
for fd in $7; do
    eval "echo 0 >&$fd && exec $fd>&-" || exit 125
done
ulimit "${@:8}" || exit 125
eval "exec 3<&$5 $5<&- 4>&$6 $6>&- 5>&1 6>&2 </dev/null >/dev/null 2>&1"

# A handler, not '': every command would inherit an ignored signal. As pid 1 the supervisor must survive all of them.
trap : HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU XFSZ VTALRM SYS

IFS= read -r -d '' inner <"$lib/inner.line"
cd -- "$home" || exit 125

while :; do
    "$BASH" --norc --noprofile -c "$inner" bash "$io" "$name"
    printf '\0x %s %d\0' "$name" $? >&4 || exit
    while :; do
        IFS= read -r -d '' -u 3 order || exit
        case $order in go:* | sweep:*) break ;; esac # else: a command that the last shell has not read
    done
    # Only as pid 1 of a namespace: anywhere else, -1 would kill processes that do not belong to the slot.
    if [[ $order == sweep:* ]] && (($$ == 1)); then
        while kill -KILL -1; do # fails when no process is left
            read -r -t 0.001 -u 3
        done
    fi
    order=${order#*:}
    name=${order%%:*}
    cd -- "${order#*:}" || cd -- "$home"
done
