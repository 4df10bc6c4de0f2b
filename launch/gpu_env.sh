# Environment of every process that drives GPUs; one_node.sh, slurm.sbatch, jobset.yaml and the
# image source it. Source it before a dry run or tiger_jax.decode too: flags change memory.
#
# XLA_FLAGS that are set already stay, and win. An unknown flag aborts at start-up; that each one
# below exists in jaxlib 0.10.2 is checked by tests/launch/test_launch.py. None of them was timed on
# a card; what is said about memory and order was read in programs compiled for a described A40.

flags=(
  # Start gathers and reductions of sharded weights before the products that do not need them. Off
  # by default, and over PCIe the links are what a step waits for. Costs 7 % more temporaries (an
  # 8-layer MLP, fsdp = 8: 1.36 -> 1.46 GB).
  --xla_gpu_enable_latency_hiding_scheduler=true

  # XLA's own all-reduce for less than 2 MB reads the memory of all other cards directly. It needs
  # peer access between every two, which A40s without NVLink between them may not have, and there a
  # missing one is a hang. NCCL instead costs some 15 us each. Where decoding with tensor > 1 works
  # with =true, leave it there.
  --xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false
)
if [[ -n "${TIGER_GRAPH_COLLECTIVES:-}" ]]; then
  # Decoding with tensor > 1: each all-reduce splits the CUDA graph of a round, 160 pieces for a
  # 13B. With this the round is one graph, NCCL included. Needs driver 12.3. Never alone with
  # +WHILE, which removes all graphs.
  flags+=(--xla_gpu_enable_command_buffer=+COLLECTIVES)
fi
export XLA_FLAGS="${flags[*]} ${XLA_FLAGS:-}"
unset flags

# Of the card's memory for JAX. Not more: NCCL's buffers and the driver's memory for CUDA graphs
# (some 3,800 kernels a round) lie outside, and a graph that finds none is an error.
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}"

# Compiled programs and autotuned tiles, so that a restart compiles nothing. On a disk that all
# hosts share, or each host compiles for itself.
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tiger_jax/xla}"

# A wrong network interface is the usual reason of a first collective that never ends; WARN says
# what NCCL found. Then: export NCCL_SOCKET_IFNAME=<the one between the hosts>.
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"

# Lines of several processes reach the log when they are written.
export PYTHONUNBUFFERED=1
