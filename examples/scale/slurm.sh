#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --exclusive --time=4:00:00
#SBATCH --signal=B:TERM@300 --requeue
# A run on all nodes of a Slurm job: one Ray node on each, the driver on the first.
#
#     sbatch examples/scale/slurm.sh evaluate terminal-test --out runs/big --resume
#
# The words after the script are those of `ludus`. Five minutes before the time limit the run is drained: what is under way
# is finished and recorded. Submit the same line again, or let Slurm requeue it, and it goes on. Ludus must be the same on
# all nodes (a venv in a shared home is), and `--out` on a disk that outlives the job.
set -eu

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
ip=$(hostname -I | cut -d' ' -f1)  # of the network that the nodes share: name another one here if it is not the first
address=$ip:$((20000 + SLURM_JOB_ID % 10000))
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')  # else whoever reaches the port can run code as you
export RAY_USAGE_STATS_ENABLED=0
join=(ray start --block --num-cpus "$SLURM_CPUS_ON_NODE")

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"${join[@]}" --head --node-ip-address "$ip" --port "${address#*:}" --temp-dir "/tmp/ray-$SLURM_JOB_ID" --include-dashboard false >&2 &
head=$!
until (: </dev/tcp/"${address/://}") 2>/dev/null; do
    kill -0 $head
    sleep 0.5
done
if [ ${#nodes[@]} -gt 1 ]; then
    others=$(IFS=,; echo "${nodes[*]:1}")
    srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --nodelist="$others" "${join[@]}" --address "$address" >&2 &
fi

ludus "$@" --engine ray --engine.address "$address" &
driver=$!
trap 'kill -TERM $driver' TERM
while :; do
    code=0
    wait $driver || code=$?
    kill -0 $driver 2>/dev/null || exit $code
done  # the signal ended the wait, not the run
