"""What launch/ says is so: scripts parse, flags exist and are explained, pins hold."""

import functools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jaxlib
import pytest
from packaging.requirements import Requirement
from two_processes import free_port

REPO = Path(__file__).parents[2]
LAUNCH = REPO / "launch"
SCRIPTS = ("gpu_env.sh", "one_node.sh", "slurm.sbatch")
FILES = (*SCRIPTS, "jobset.yaml", "Dockerfile")
FLAG = re.compile(r"--(xla_\w+)=")


@pytest.mark.parametrize("name", SCRIPTS)
def test_shell_scripts_parse(name):
    subprocess.run(["bash", "-n", str(LAUNCH / name)], check=True)


def test_jobset_says_the_same_number_of_nodes_everywhere():
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    (job,) = spec["spec"]["replicatedJobs"]
    job_spec = job["template"]["spec"]
    (container,) = job_spec["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    nodes, gpus = job_spec["completions"], container["resources"]["limits"]["nvidia.com/gpu"]
    assert job_spec["parallelism"] == int(environment["TIGER_NUM_PROCESSES"]) == nodes
    assert int(environment["TIGER_DEVICES"]) == nodes * gpus
    host, port = environment["TIGER_COORDINATOR"].split(":")
    assert host == f"{spec['metadata']['name']}-{job['name']}-0-0.{spec['metadata']['name']}"
    ports = [entry["containerPort"] for entry in container["ports"]]
    assert ports == [int(port), int(port) - 4096]
    mesh = dict(re.findall(r"--config\.mesh\.(\w+)=(\d+)", " ".join(container["args"])))
    assert int(mesh["fsdp"]) * int(mesh["tensor"]) == nodes * gpus


def flags_of(name: str) -> set[str]:
    return set(FLAG.findall((LAUNCH / name).read_text()))


@functools.cache
def known_flags() -> set[str]:
    """Names of all XLA flags of the installed jaxlib, and of its CUDA plugin if it is there."""
    site = Path(jaxlib.__file__).parents[1]
    places = ("jaxlib/libjax_common.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so")
    libraries = [site / place for place in places if (site / place).exists()]
    names = [re.findall(rb"\0(xla_\w+)(?=\0)", path.read_bytes())
             for path in libraries]  # fmt: skip
    if not names:
        pytest.skip("jaxlib keeps its flags elsewhere")
    return set.intersection(*(set(map(bytes.decode, found)) for found in names))


def test_flags_exist():
    """XLA's own answer to an unknown one is an abort; that such a name is missing here, too."""
    used = set().union(*map(flags_of, FILES))
    assert used
    assert used <= known_flags()
    assert "xla_gpu_enable_nonsense" not in known_flags()


@pytest.mark.parametrize("name", FILES)
def test_flags_are_explained(name):
    """A comment stands right before each flag, or before what the flag depends on."""
    lines = (LAUNCH / name).read_text().splitlines()
    for place, line in enumerate(lines):
        if FLAG.search(line) and not line.lstrip().startswith("#"):
            assert lines[place - 1].lstrip().startswith("#"), line


def test_flags_are_accepted():
    """The CPU client parses the same list."""
    flags = f"source {LAUNCH}/gpu_env.sh; exec {sys.executable} -c 'import jax; jax.devices()'"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TIGER_GRAPH_COLLECTIVES": "1"}
    subprocess.run(["bash", "-c", flags], check=True, env=environment)


def test_memory_stays_for_nccl_and_graphs():
    script = f"source {LAUNCH}/gpu_env.sh; echo $XLA_PYTHON_CLIENT_MEM_FRACTION"
    environment = {key: value for key, value in os.environ.items() if "MEM_FRACTION" not in key}
    shown = subprocess.check_output(["bash", "-c", script], env=environment)
    assert float(shown) <= 0.9


def test_pins_fit_pyproject():
    """Each dependency is pinned, at a version that pyproject allows; CUDA's wheels fit jax's."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    lines = (LAUNCH / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    for text in (*project["dependencies"], *project["optional-dependencies"]["cuda12"]):
        asked = Requirement(text)
        assert asked.specifier.contains(pins[asked.name.lower()]), text
    assert pins["jax"] == pins["jaxlib"] == pins["jax-cuda12-plugin"] == pins["jax-cuda12-pjrt"]


def test_the_image_uses_the_pins():
    text = (LAUNCH / "Dockerfile").read_text()
    assert re.search(r"^FROM nvidia/cuda:12\.\d+\.\d+-base-", text, re.M)
    installs = re.findall(r"pip install (.*)", text)
    assert installs
    assert all(line.startswith("-c launch/constraints.txt") for line in installs)
    version = re.search(r"^jax==(.*)$", (LAUNCH / "constraints.txt").read_text(), re.M)[1]
    assert f"tiger_jax:{version} " in text
    assert f"tiger_jax:{version} " in (LAUNCH / "jobset.yaml").read_text()


def one_node(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(LAUNCH / "one_node.sh"), *arguments], capture_output=True, text=True, check=False,
        timeout=300, env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHON": sys.executable,
                                       "XLA_FLAGS": ""} | environment,
    )  # fmt: skip


def test_one_node_wants_processes_that_divide_the_gpus():
    done = one_node(GPUS="8", PROCESSES="3")
    assert done.returncode == 2
    assert done.stderr == "error: PROCESSES: expected a divisor of GPUS=8, got 3\n"


def test_one_node_counts_its_devices(tmp_path):
    """Four virtual devices, a config for eight: both processes say so, before anything is read."""
    done = one_node(
        "--config", "configs/kd.py", "--config.mesh.fsdp=8", f"--config.run_dir={tmp_path}/run",
        GPUS="4", PROCESSES="2", PORT=str(free_port()),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: devices: expected 8 (the config's mesh), got 4") == 2
    assert not (tmp_path / "run").exists()
