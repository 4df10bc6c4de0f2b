#!/usr/bin/env bash
# Train on the GPUs of this machine:
#
#   launch/one_node.sh --config configs/kd.py:llava_next --config.examples="('my.jsonl',)"
#
# The same command again goes on where it stopped. SIGTERM and Ctrl-C save a checkpoint.
#
#   GPUS=8         devices that must be there: one that is missing is an error, not a slower run
#   PROCESSES=1    1: one process drives all of them. N: N processes over loopback, GPUS / N each,
#                  joined by jax.distributed as they are across hosts
#   PORT=61000     of their coordinator; PORT - 4096 is used too
#   PYTHON=python
#
# On a machine without GPUs: JAX_PLATFORMS=cpu GPUS=8 launch/one_node.sh ... (virtual devices).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/gpu_env.sh

gpus=${GPUS:-8} processes=${PROCESSES:-1} port=${PORT:-61000}
if (( gpus % processes )); then
  echo "error: PROCESSES: expected a divisor of GPUS=$gpus, got $processes" >&2
  exit 2
fi
each=$(( gpus / processes ))
export TIGER_DEVICES=${TIGER_DEVICES:-$gpus}
if [[ ${JAX_PLATFORMS:-} == cpu ]]; then
  export JAX_NUM_CPU_DEVICES=$each
fi
train=("${PYTHON:-python}" -m tiger_jax.train "$@")
if (( processes == 1 )); then
  exec "${train[@]}"  # the shell is gone: signals reach Python
fi

export TIGER_COORDINATOR=127.0.0.1:$port TIGER_NUM_PROCESSES=$processes
IFS=, read -ra cards <<< "${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $(( gpus - 1 )))}"
pids=()
set -m  # each process in a group of its own: the terminal's Ctrl-C comes through the trap, once
for (( i = 0; i < processes; i++ )); do
  mine=$(IFS=,; echo "${cards[*]:i * each:each}")
  TIGER_PROCESS_ID=$i CUDA_VISIBLE_DEVICES=$mine "${train[@]}" &
  pids+=($!)
done
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM
code=0
for pid in "${pids[@]}"; do
  while true; do
    status=0
    wait "$pid" || status=$?
    kill -0 "$pid" 2>/dev/null || break  # a signal ends `wait` before the process
  done
  if (( status > 128 )); then  # of the signal, perhaps; the process has its own
    status=0
    wait "$pid" || status=$?
  fi
  # 3 = ended because another process did: that one's code says more.
  if (( status && (code == 0 || code == 3) )); then code=$status; fi
done
exit "$code"
