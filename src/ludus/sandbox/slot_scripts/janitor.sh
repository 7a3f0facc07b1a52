# Cleans up after a driver that died without a cleanup: janitor.sh FOLDER CGROUP...
# Its stdin is a pipe that only the driver holds open, so `read` returns when the driver has closed it or has died.

trap '' HUP INT TERM
folder=$1
shift
read -r

for _ in {1..100}; do
    for file in /proc/[1-9]*/environ; do
        mapfile -d '' -t variables <"$file" || continue
        for variable in "${variables[@]}"; do
            [[ $variable == "LUDUS_SLOT=$folder/"* ]] && kill -KILL "${file//[^0-9]/}"
        done
    done
    for group in "$@"; do
        rmdir "$group"/*/ "$group"
    done
    rm -rf -- "$folder" || chmod -R u+rwx -- "$folder"
    left=0
    for path in "$folder" "$@"; do
        [[ -e $path ]] && left=1
    done
    ((left)) || exit 0
    sleep 0.1
done 2>/dev/null
