"""The short table that the decode command prints under an answer."""


def summary(report: dict) -> str:
    """The short table under an answer."""

    def number(value: float | None, form: str, unit: str = "") -> str:
        return "not measured" if value is None else format(value, form) + unit

    lines = [f"{report['tokens']} tokens in {report['rounds']} rounds"]
    if report["A"] is not None:
        lines.append(
            f"accepted a round  A {report['A']:.2f} of {_drafted(report)}"
            f"   tau {report['tau']:.2f}   P(A>=2) {report['p_ge_2']:.2f}"
            f"   P(A>=4) {report['p_ge_4']:.2f}"
        )
    lines += _shown(report)
    seconds = f"prefill {report['prefill_seconds']:.3f} s   decode {report['decode_seconds']:.3f} s"
    included = [what for what in ("compilation", "trace") if report[f"times_include_{what}"]]
    if included:
        seconds += f" ({' and '.join(included)} included)"
    if report.get("first_token_seconds"):
        seconds += f"   start to first token {report['first_token_seconds']:.1f} s"
    lines.append(seconds)
    if report["measured_speedup"] is not None:
        lines.append(
            f"plain   prefill {report['plain_prefill_seconds']:.3f} s"
            f"   decode {report['plain_decode_seconds']:.3f} s"
        )
        lines.append(
            f"speedup measured {report['measured_speedup']:.2f}x"
            f" ({report['measured_speedup_with_prefill']:.2f}x with prefill)"
            f"   predicted {number(report['predicted_speedup'], '.2f', 'x')}"
            f"   c {number(report['c'], '.3f')}"
            f"   c_route {number(report['c_route'], '.3f')}   v {number(report['v'], '.2f')}"
            f"   ceiling 1/c {number(report['ceiling'], '.1f', 'x')}"
        )
        same = {True: "yes", False: "NO", None: "other draws of the same law (temperature > 0)"}[
            report["identical_to_plain"]
        ]
        lines.append(f"identical to plain decoding: {same}")
    return "\n".join(lines)


def _drafted(report: dict) -> str:
    """What was drafted in a round."""
    depth, nodes = report["draft_length"], report["draft_nodes"]
    return f"{depth} drafted" if nodes == depth + 1 else f"at most {depth}, {nodes - 1} drafted"


def _shown(report: dict) -> list[str]:
    """How many visual tokens pictures and frames had; nothing without any, or without a budget."""
    requests, budget = report["requests"], report["visual_budget"]
    sizes = sorted({size for request in requests for size in request["tokens_per_frame"]})
    if not sizes or budget is None:
        return []
    count = sum(request["frames"] for request in requests)
    each = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return [f"pictures and frames {count}   visual tokens of each {each}   budget {budget}"]
