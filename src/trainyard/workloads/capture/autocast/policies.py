"""Which element type an op computes in under autocast, by device: torch's own lists, by the name of the op overload."""

from __future__ import annotations

from typing import Literal

Policy = Literal["lower", "float32", "float32_result", "widest", "refused"]
"""`lower`: operands are cast to the region's type. `float32`: operands are cast to fp32. `float32_result`: the op reads its operand
as it is and computes in fp32, unless the call names a type. `widest`: operands are cast to the widest type among them. `refused`:
the op is an error under autocast."""

# fmt: off
_PRODUCTS = """
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input _convolution.deprecated
    addbmm addmm baddbmm bmm linalg_vecdot linear matmul mm prelu scaled_dot_product_attention
"""
_LOSSES = """
    binary_cross_entropy_with_logits cdist cosine_embedding_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss
    mse_loss multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d poisson_nll_loss smooth_l1_loss soft_margin_loss
    triplet_margin_loss
"""

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_TABLES: dict[str, dict[Policy, str]] = {
    "cuda": {
        # The recurrent layers are cuDNN's there: it casts input, states and weights together.
        "lower": _PRODUCTS + """
            _convolution convolution cudnn_convolution cudnn_convolution_transpose addmv addr mv chain_matmul einsum
            linalg_multi_dot _thnn_fused_gru_cell _thnn_fused_lstm_cell gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell
            lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data
            _scaled_dot_product_flash_attention
        """,
        "float32": _LOSSES + """
            acos asin cosh erfinv exp expm1 log log10 log1p log2 pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal rsqrt
            sinh softplus tan layer_norm native_layer_norm group_norm rms_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
            cosine_similarity dist pdist renorm logsumexp
            upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
            _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
            _upsample_bilinear2d_aa _upsample_bicubic2d_aa
        """,
        "float32_result": """
            prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
            linalg_matrix_norm.str_ord sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim
        """,
        "widest": "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put scatter_add tensordot",
        "refused": "binary_cross_entropy",
    },
    "cpu": {
        "lower": _PRODUCTS + """
            conv1d.padding conv2d.padding conv3d.padding _addmm_activation _native_multi_head_attention mkldnn_rnn_layer
        """,
        "float32": _LOSSES + """
            binary_cross_entropy cross_entropy_loss ctc_loss.IntList ctc_loss.Tensor multilabel_margin_loss_forward prod
            prod.dim_int
            adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d max_pool3d fractional_max_pool2d fractional_max_pool3d
            max_unpool2d max_unpool3d grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback
            reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
            cholesky cholesky_inverse cholesky_solve linalg_cholesky linalg_cholesky_ex linalg_inv linalg_inv_ex inverse pinverse
            linalg_cond linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product
            linalg_lstsq linalg_matrix_rank linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor
            linalg_matrix_rank.tol_tensor linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
            _lu_with_info lu_solve geqrf orgqr ormqr qr svd triangular_solve trace
            fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft
            fft_rfft2 fft_rfftn stft stft.center polar view_as_complex
            nanquantile nanquantile.scalar quantile quantile.scalar fake_quantize_per_tensor_affine
        """,
        "widest": "cat stack index_copy",
    },
}
# fmt: on

POLICIES: dict[str, dict[str, Policy]] = {
    device: {op: policy for policy, ops in table.items() for op in ops.split()} for device, table in _TABLES.items()
}
"""By device, then by op overload."""
