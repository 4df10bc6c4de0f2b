"""Which processes make up a run, read from the environment; nothing is started here.

First match:

    TIGER_COORDINATOR=HOST:PORT TIGER_NUM_PROCESSES=N TIGER_PROCESS_ID=I   by hand, and JobSet
    srun with more than one task                                           SLURM
    mpirun with more than one rank                                         Open MPI before 5

For SLURM and MPI the variables, the port and the rule "a process of several on a host takes one
GPU" are those of jax.distributed; that a process alone on its host takes all its GPUs is ours.
"""

import dataclasses
import re
from collections.abc import Mapping

from tiger_jax.errors import UserError

BY_HAND = ("TIGER_COORDINATOR", "TIGER_NUM_PROCESSES", "TIGER_PROCESS_ID")
SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
OPEN_MPI = ("OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
_PORTS = 4096
"""Jobs get ports by their number: 61440 to 65535, above the ones that Linux hands out."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run, and which one this is."""

    host: str
    """Of process 0."""
    port: int
    """Of jax's coordinator, on `host`."""
    count: int
    index: int
    local_devices: tuple[int, ...] | None = None
    """The GPUs of this host that are this process's; None = all."""

    @property
    def lifeline_port(self) -> int:
        """Next to no other job's: a block of ports below the coordinator's."""
        return self.port - _PORTS if self.port > 2 * _PORTS else self.port + _PORTS


def read_processes(environment: Mapping[str, str]) -> Processes | None:
    """The processes that `environment` names; None for a single one.

    Raises:
        UserError: some of BY_HAND without the others, or values that cannot be.
    """
    given = [name for name in BY_HAND if environment.get(name)]
    if given:
        found = _by_hand(environment, given)
    elif all(name in environment for name in SLURM):
        found = _slurm(environment)
    elif all(name in environment for name in OPEN_MPI):
        found = _open_mpi(environment)
    else:
        return None
    return found if found.count > 1 else None


def _by_hand(environment: Mapping[str, str], given: list[str]) -> Processes:
    missing = [name for name in BY_HAND if name not in given]
    if missing:
        raise UserError(f"{missing[0]}: expected beside {given[0]}, got none")
    host, _, port = environment["TIGER_COORDINATOR"].rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        got = environment["TIGER_COORDINATOR"]
        raise UserError(f"TIGER_COORDINATOR: expected HOST:PORT, got {got!r}")
    for name in BY_HAND[1:]:
        if not environment[name].isdecimal():
            raise UserError(f"{name}: expected a whole number, got {environment[name]!r}")
    count, index = (int(environment[name]) for name in BY_HAND[1:])
    if index >= count:
        raise UserError(f"TIGER_PROCESS_ID: expected below TIGER_NUM_PROCESSES={count}, "
                        f"got {index}")  # fmt: skip
    return Processes(host.strip("[]"), int(port), count, index)


def _slurm(environment: Mapping[str, str]) -> Processes:
    job = int(environment["SLURM_JOB_ID"])
    # "1(x2)": one task on each of two nodes.
    alone = environment.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0] == "1"
    return Processes(
        first_host(environment["SLURM_STEP_NODELIST"]), _port(job),
        int(environment["SLURM_NTASKS"]), int(environment["SLURM_PROCID"]),
        None if alone else (int(environment["SLURM_LOCALID"]),),
    )  # fmt: skip


def first_host(nodes: str) -> str:
    """The first name of a SLURM node list: "gpu[003-004,7],x" -> "gpu003"."""
    prefix, number, suffix = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes).groups("")
    return prefix + number + suffix


def _open_mpi(environment: Mapping[str, str]) -> Processes:
    uri = environment["OMPI_MCA_orte_hnp_uri"]  # "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"
    match = re.match(r"(\d+)\..*?(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", uri)
    if match is None:
        raise UserError(f"OMPI_MCA_orte_hnp_uri: expected JOB.N;tcp://ADDRESS, got {uri!r}")
    alone = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
    local = environment.get("OMPI_COMM_WORLD_LOCAL_RANK")
    return Processes(
        match[2] or match[3], _port(int(match[1]) // _PORTS),  # jobs are numbered in steps of 4096
        int(environment["OMPI_COMM_WORLD_SIZE"]), int(environment["OMPI_COMM_WORLD_RANK"]),
        None if alone or local is None else (int(local),),
    )  # fmt: skip


def _port(job: int) -> int:
    return 65536 - _PORTS + job % _PORTS
