"""The cards that a dry run can ask about, from their data sheets."""

import dataclasses

from tiger_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Card:
    """What XLA's GPU compiler and a roofline have to know of a card."""

    name: str
    capability: tuple[int, int]
    cores: int
    threads_per_core: int
    shared_per_core: int
    """Bytes of shared memory of a streaming multiprocessor."""
    l2_bytes: int
    memory_bytes: float
    """What programs can use."""
    bandwidth: float
    """Of the memory, bytes a second, the data sheet's."""
    clock_ghz: float
    peak_flops: float
    """Dense products of bfloat16 a second."""
    link_bandwidth: float
    """To the other cards of a machine, bytes a second, one direction."""
    link: str

    @property
    def target(self) -> str:
        """A stream_executor.GpuTargetConfigProto in text form.

        Without a driver version XLA takes an old one, which can do few things in a CUDA graph.
        """
        major, minor = self.capability
        info = {
            "threads_per_block_limit": 1024, "threads_per_warp": 32,
            "shared_memory_per_block": 49152, "shared_memory_per_core": self.shared_per_core,
            "shared_memory_per_block_optin": self.shared_per_core - 1024,
            "threads_per_core_limit": self.threads_per_core, "core_count": self.cores,
            "fpus_per_core": 128, "block_dim_limit_x": 2**31 - 1, "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535, "thread_dim_limit_x": 1024, "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64, "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536, "memory_bandwidth": int(self.bandwidth),
            "l2_cache_size": self.l2_bytes, "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": int(self.memory_bytes),
            "driver_version": '"12.9.0"', "runtime_version": '"12.9.0"',
        }  # fmt: skip
        fields = "\n".join(f"  {name}: {value}" for name, value in info.items())
        return (
            f"gpu_device_info {{\n{fields}\n"
            f"  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
            'platform_name: "CUDA"\n'
            "dnn_version_info { major: 9 minor: 8 patch: 0 }\n"
            f'device_description_str: "NVIDIA {self.name}"\n'
        )


CARDS = {
    "a40": Card(
        "A40", (8, 6), 84, 1536, 102_400, 6 * 2**20, 47.8e9, 696e9, 1.74, 150e12, 25e9,
        "PCIe 4.0 x16",
    ),
    "h200": Card(
        "H200", (9, 0), 132, 2048, 233_472, 50 * 2**20, 141e9, 4.8e12, 1.98, 989e12, 450e9,
        "NVLink",
    ),
}  # fmt: skip


def find_card(name: str) -> Card:
    """A card by name. Raises UserError."""
    if name not in CARDS:
        raise UserError(f"card: expected one of {', '.join(CARDS)}, got {name!r}")
    return CARDS[name]


def card_of(device_kind: str) -> Card | None:
    """The card that jax calls `device_kind` ("NVIDIA A40"), None if it is not described here."""
    return next((card for card in CARDS.values() if card.name in device_kind.split()), None)
