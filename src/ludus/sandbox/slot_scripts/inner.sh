# The persistent shell that commands run in: inner.sh IO NAME. Records on descriptor 3, each ended by NUL: "SEQ:COMMAND",
# or "@SEQ" when the command lies in the file IO/SEQ. Each is answered on 4 with "d SEQ CODE DIR". What a command does to
# the descriptors, `exec >&-` included, ends with it. The host joins these lines into one, hence every semicolon.
readonly LUDUS_IO=$1;
builtin printf '\0r %s %d\0' "$2" "$BASHPID" >&4;
shift 2;
while IFS= builtin read -r -d '' -u 3 _ludus; do
    case $_ludus in
    @*) _ludus_seq=${_ludus#@}; IFS= builtin read -r -d '' _ludus <"$LUDUS_IO/$_ludus_seq" ;;
    [0-9]*) _ludus_seq=${_ludus%%:*}; _ludus=${_ludus#*:} ;;
    *) continue ;;
    esac;
    builtin eval "$_ludus" </dev/null >&5 2>&6 3<&- 4>&- 5>&- 6>&-;
    builtin printf '\0d %s %d %s\0' "$_ludus_seq" $? "${PWD:0:4096}" >&4 || builtin exit 125;
done
