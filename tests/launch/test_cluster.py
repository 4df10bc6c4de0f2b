"""Which processes make up a run, by hand-written environments of each launcher."""

import pytest

from tiger_jax.cluster import Processes, first_host, read_processes
from tiger_jax.distributed import expected_devices
from tiger_jax.errors import UserError

BY_HAND = {
    "TIGER_COORDINATOR": "gpu0:61000", "TIGER_NUM_PROCESSES": "2", "TIGER_PROCESS_ID": "1",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "4097", "SLURM_STEP_NODELIST": "gpu[003-004]", "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (BY_HAND, Processes("gpu0", 61000, 2, 1)),
        (BY_HAND | SLURM, Processes("gpu0", 61000, 2, 1)),
        (BY_HAND | {"TIGER_COORDINATOR": "[::1]:61000"}, Processes("::1", 61000, 2, 1)),
        (BY_HAND | {"TIGER_NUM_PROCESSES": "1", "TIGER_PROCESS_ID": "0"}, None),
        # 61440 + 4097 % 4096; jax alone would give a process alone on its node GPU 0 and no other.
        (SLURM, Processes("gpu003", 61441, 2, 1, None)),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_LOCALID": "3"},
            Processes("gpu003", 61441, 2, 1, (3,)),
        ),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
        ({"SLURM_JOB_ID": "4097", "SLURM_NTASKS": "2"}, None),  # a shell of salloc, no srun
        # 1531576320 / 4096 = 373920; 373920 % 4096 = 1184
        (OPEN_MPI, Processes("10.96.0.1", 62624, 16, 9, (1,))),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, Processes("10.96.0.1", 62624, 16, 9)),
    ],
)
def test_processes_of_an_environment(environment, expected):
    assert read_processes(environment) == expected


def test_jax_reads_the_same_from_slurm_and_mpi(monkeypatch):
    """Host, port and numbers are those that jax.distributed finds; its local devices differ."""
    clusters = pytest.importorskip("jax._src.clusters")
    for environment in (SLURM, OPEN_MPI):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            address, count, index, _ = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                None, None, None, None, None, 1
            )
        found = read_processes(environment)
        assert (address, count, index) == (f"{found.host}:{found.port}", found.count, found.index)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[3-5],x", "n3"), ("a-n[07,9]", "a-n07"),
     ("n[1-2]-ib,x", "n1-ib")],
)  # fmt: skip
def test_first_host(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TIGER_PROCESS_ID": ""}, "TIGER_PROCESS_ID: expected beside TIGER_COORDINATOR, got none"),
        ({"TIGER_COORDINATOR": "gpu0"}, "TIGER_COORDINATOR: expected HOST:PORT, got 'gpu0'"),
        ({"TIGER_COORDINATOR": "gpu0:99999"}, "TIGER_COORDINATOR: expected HOST:PORT"),
        ({"TIGER_NUM_PROCESSES": "two"}, "TIGER_NUM_PROCESSES: expected a whole number, got 'two'"),
        ({"TIGER_PROCESS_ID": "2"}, "expected below TIGER_NUM_PROCESSES=2, got 2"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(UserError, match=message):
        read_processes(BY_HAND | change)


def test_two_jobs_share_no_port():
    """Jobs 4096 and 8191 are first and last of the block of ports; their second ports lie below."""
    ports = set()
    for job in ("4096", "8191", "4097"):
        found = read_processes(SLURM | {"SLURM_JOB_ID": job})
        ports |= {found.port, found.lifeline_port}
    assert ports == {61440, 57344, 65535, 61439, 61441, 57345}


def test_devices_that_a_mesh_needs():
    assert expected_devices({"data": 2, "fsdp": 4, "tensor": 2}) == 16
    assert expected_devices({"data": 1, "fsdp": 4, "tensor": -1}) is None
