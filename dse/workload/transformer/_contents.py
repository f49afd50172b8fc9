"""What a transformer holds, as `dse model show` lists it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.model import TransformerModel


def model_contents(model: TransformerModel) -> dict[str, object]:
    """Returns layers, parameters and recipe of a model, by name."""
    parts = {
        "experts": model.experts,
        "latent_attention": model.latent,
        "sliding_window": model.window,
        "mtp_modules": model.mtp_modules,
    }
    # As in the file: of layers without experts, and absent where all have them.
    inner = model.ffn_hidden if model.experts is None else model.experts.dense_ffn_hidden
    return {
        "family": model.family.value,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        **({"ffn_hidden": inner} if inner else {}),
        **{name: part for name, part in parts.items() if part},
        "vocab": model.vocab,
        "parameters": model.parameter_count,
        "active_parameters": model.active_parameter_count,
        "sequence_length": model.sequence_length,
        "precision": model.precision.value,
        "global_batch_size": model.global_batch_size,
    }
