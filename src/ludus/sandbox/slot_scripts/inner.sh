# The persistent shell that runs the commands: inner.sh IO FOLDER HOME. It reads records on descriptor 3, each ended by
# NUL: "SEQ:COMMAND", or "@SEQ" if the command is in the file IO/SEQ. It answers each on 4 with "d SEQ CODE DIR". Changes that
# a command makes to the descriptors, such as `exec >&-`, end with it. The host joins these lines into one, so each needs
# its semicolon.
readonly LUDUS_IO=$1;
builtin cd -- "$2" 2>/dev/null || builtin cd -- "$3" 2>/dev/null || builtin cd /;
builtin printf '\0r\0' >&4;
shift 3;
while IFS= builtin read -r -d '' -u 3 _ludus; do
    case $_ludus in
    @*) _ludus_seq=${_ludus#@}; IFS= builtin read -r -d '' _ludus <"$LUDUS_IO/$_ludus_seq" ;;
    [0-9]*) _ludus_seq=${_ludus%%:*}; _ludus=${_ludus#*:} ;;
    *) continue ;;
    esac;
    builtin eval "$_ludus" </dev/null >&5 2>&6 3<&- 4>&- 5>&- 6>&-;
    builtin printf '\0d %s %d %s\0' "$_ludus_seq" $? "${PWD:0:4096}" >&4 || builtin exit 125;
done;
builtin exit 137
