"""Dispatches of mixtures of experts as all-to-alls."""

from __future__ import annotations

import pytest

from dse.calibration.measurements import dispatch_message_bytes, read_collective

HEADER = "device,op_name,moe_dtype,num_tokens,hidden_size,topk,num_experts,moe_ep_size"


def write(path, *rows: str):
    path.write_text(
        "\n".join([f"{HEADER},distribution,latency", *(f"NVIDIA GB200,{row}" for row in rows)])
    )
    return path


@pytest.mark.parametrize(("ranks", "ranks_reached"), [(2, 2), (8, 8), (16, 8)])
def test_a_token_goes_once_to_every_rank_with_one_of_its_experts(ranks, ranks_reached):
    assert dispatch_message_bytes(3, 100, 8, ranks, 2) == 3 * 200 * ranks_reached


def test_dispatches_of_plain_values_are_read(tmp_path):
    rows = [f"alltoall_dispatch,bfloat16,{2**k},64,8,256,4,balanced,0.0{k}" for k in range(1, 6)]
    others = (
        "alltoall_combine,bfloat16,2,64,8,256,4,balanced,0.5",
        "alltoall_dispatch,fp8,2,64,8,256,4,balanced,0.5",
        "alltoall_dispatch,bfloat16,2,64,8,256,4,power_law,0.5",
    )
    samples = read_collective(write(tmp_path / "moe.csv", *rows, *others))
    assert samples.op.tolist() == ["all_to_all"] * 5
    assert samples.ranks.tolist() == [4] * 5
    assert samples.size_bytes.tolist() == [2**k * 64 * 2 * 4 for k in range(1, 6)]
    assert samples.time_s == pytest.approx([1e-5 * k for k in range(1, 6)])
    assert any("5 of 8 rows" in note for note in samples.notes)
