"""Names of PyTorch's operators, without library and overload, by what they do."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators that only make another view, allocate, or read one value.
NO_WORK = _names(
    """
    _local_scalar_dense _reshape_alias _unsafe_view alias as_strided chunk contiguous detach empty
    empty_like empty_strided expand expand_as item lift_fresh movedim narrow new_empty
    new_empty_strided numpy_T permute reshape resize_ resolve_conj resolve_neg result_type select
    set_ slice split split_with_sizes squeeze t transpose unbind unflatten unsqueeze view view_as
    """
)

#: Operators that write one tensor.
FILLS = _names("fill_ zero_ zeros ones full zeros_like ones_like full_like normal_ uniform_")

#: Operators that read one tensor and write far less.
REDUCTIONS = _names(
    """
    _foreach_norm all amax amin any argmax argmin count_nonzero linalg_vector_norm logsumexp max
    mean min nll_loss2d_forward nll_loss_forward norm prod std sum var var_mean
    """
)

#: Products of matrices: places of the two matrices among the arguments.
PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "_addmm_activation": (1, 2), "addmm_": (1, 2)}

#: Products of batches of matrices, likewise.
BATCHED_PRODUCTS = {"bmm": (0, 1), "baddbmm": (1, 2), "baddbmm_": (1, 2)}

#: Products with a transposed matrix, of rows with any number of leading dimensions.
LINEAR = _names("linear mkldnn_linear _mkl_linear _linear_pointwise")

#: Input and weight come first.
CONVOLUTIONS = _names(
    """
    _conv_depthwise2d _convolution _convolution_pointwise _slow_conv2d_forward conv1d conv2d conv3d
    conv_depthwise3d convolution convolution_overrideable cudnn_convolution cudnn_convolution_relu
    miopen_convolution mkldnn_convolution slow_conv3d_forward thnn_conv2d
    """
)
TRANSPOSED_CONVOLUTIONS = _names(
    "conv_transpose2d cudnn_convolution_transpose miopen_convolution_transpose"
)

#: Gradient of the output, input and weight come first.
CONVOLUTIONS_BACKWARD = _names(
    """
    _slow_conv2d_backward convolution_backward convolution_backward_overrideable
    cudnn_convolution_backward miopen_convolution_backward mkldnn_convolution_backward
    """
)

#: Places of the table (of the gradient in backward operators), the indices, and one entry a bag.
LOOKUPS = {
    "embedding": (0, 1, 1),
    "index_select": (0, 2, 2),
    "embedding_bag": (0, 1, 2),
    "_embedding_bag": (0, 1, 2),
    "_embedding_bag_forward_only": (0, 1, 2),
    "embedding_dense_backward": (0, 1, 1),
    "_embedding_bag_dense_backward": (0, 1, 1),
}
LOOKUPS_BACKWARD = _names("embedding_dense_backward _embedding_bag_dense_backward")

LAYER_NORMS = _names("native_layer_norm layer_norm _fused_rms_norm rms_norm")
SOFTMAXES = _names("softmax _softmax log_softmax _log_softmax _safe_softmax")
CONCATENATIONS = _names("cat concat concatenate _cat stack")
