"""What each torch op is, where torch itself does not say: tables of names.

Point-wise ops carry torch's own tag and need no row, unless they cost more than one operation for each result. An op that is in no
table, has no tag and is no view is unknown, and capture stops at it.
"""

from __future__ import annotations

# Marks of the profiler, shape questions, and results that share memory without being declared views.
# fmt: off
NOT_RECORDED: frozenset[str] = frozenset("""
    alias detach detach_ lift lift_fresh _unsafe_view _reshape_alias view_as_real view_as_complex set_ resize_ resize_as_
    is_same_size size stride storage_offset numel dim sym_size sym_stride sym_numel sym_storage_offset is_contiguous
    is_non_overlapping_and_dense is_strides_like_format _has_compatible_shallow_copy_type _assert_async _assert_scalar
    _assert_tensor_metadata _print record_stream is_pinned _is_zerotensor requires_grad_ wait_tensor _wrap_tensor_autograd
    barrier squeeze_ unsqueeze_ transpose_ t_ swapaxes_ as_strided_ _nested_tensor_size result_type can_cast _version
    _functional_assert_async prim_device indices values _indices _values _coalesced_ coalesce is_coalesced sparse_dim dense_dim
    _nnz _pin_memory unsafe_split unsafe_split_with_sizes unsafe_chunk sym_constrain_range sym_constrain_range_for_size
    _functional_sym_constrain_range _functional_sym_constrain_range_for_size
    _resize_output _resize_output_ resize resize_as set is_set_to _linalg_check_errors _has_same_storage_numel
    _functional_assert_scalar _fused_sdp_choice _make_dep_token _use_cudnn_ctc_loss _use_miopen_ctc_loss _dimI _dimV
    _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _sparse_compressed_tensor_with_dims sparse_coo_tensor
    sparse_compressed_tensor _coalesced crow_indices col_indices ccol_indices row_indices
""".split())

MAY_COPY: frozenset[str] = frozenset("to contiguous reshape reshape_as flatten type_as".split())
"""Views where nothing has to be copied."""

WAITING: frozenset[str] = frozenset(("wait_tensor", "_wrap_tensor_autograd"))
"""Ops of torch.distributed that pass on the result of a collective."""

RENEWING: frozenset[str] = frozenset(("fsdp.split_with_sizes_copy",))
"""FSDP2 frees a module's whole parameters after forward and fills the same storage again for backward."""

ALLOCATING: frozenset[str] = frozenset("""
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided _efficientzerotensor
""".split())

FILLING: frozenset[str] = frozenset("""
    zeros ones full eye arange linspace logspace range scalar_tensor zeros_like ones_like full_like new_zeros new_ones new_full
    fill fill_ zero zero_ tril_indices triu_indices hann_window hamming_window blackman_window
    bartlett_window kaiser_window fft_fftfreq fft_rfftfreq _new_zeros_with_same_feature_meta
""".split())

RANDOM: frozenset[str] = frozenset("""
    rand randn randint randperm rand_like randn_like randint_like normal normal_ uniform uniform_ bernoulli bernoulli_
    exponential exponential_ cauchy_ geometric_ log_normal_ random random_ normal_functional native_dropout dropout
    alpha_dropout poisson binomial rrelu_with_noise rrelu_with_noise_ _standard_gamma _sample_dirichlet
    cauchy geometric log_normal _fused_dropout _philox_normal _philox_normal_ _philox_uniform _philox_uniform_
    _philox_key_fold_in _philox_key_split
""".split())

COPYING: frozenset[str] = frozenset("""
    clone copy copy_ _copy_from _to_copy to_dense _to_dense cat stack hstack vstack constant_pad_nd reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d roll flip rot90 repeat tile
    slice_backward select_backward slice_scatter select_scatter diagonal_scatter diagonal_backward as_strided_scatter
    as_strided_copy unfold_backward im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle split_with_sizes_copy split_copy
    unbind_copy expand_copy view_copy permute_copy transpose_copy slice_copy select_copy t_copy narrow_copy _chunk_cat chunk_cat
    all_gather_copy_in block_diag repeat_interleave contiguous _pad_packed_sequence _pack_padded_sequence
    _pack_padded_sequence_backward reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward trace_backward masked_scatter
    masked_scatter_ diag_embed alias_copy diagonal_copy squeeze_copy unsqueeze_copy unfold_copy lift_fresh_copy _reshape_copy
    masked_scatter_backward _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _foreach_copy
    _foreach_copy_ _foreach_zero_ upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _stack _lazy_clone detach_copy _conj_copy _neg_view_copy _reshape_alias_copy view_as_complex_copy view_as_real_copy
    _copy_from_and_resize lu_unpack to_padded_tensor _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu
    sparse_mask _sparse_mask_projection _dyn_quant_pack_4bit_weight _transform_bias_rescale_qkv
""".split())

# Point-wise, but without the tag in some release of torch.
POINTWISE: frozenset[str] = frozenset("""
    tril triu tril_ triu_ where masked_fill masked_fill_ lerp lerp_ addcmul addcmul_ addcdiv addcdiv_ threshold_backward
    gelu_backward silu_backward sigmoid_backward tanh_backward hardtanh_backward hardswish_backward hardsigmoid_backward
    elu_backward leaky_relu_backward softplus_backward mish_backward log_sigmoid_forward log_sigmoid_backward
    softshrink_backward hardshrink_backward rrelu_with_noise_backward logit_backward native_dropout_backward _prelu_kernel
    _prelu_kernel_backward infinitely_differentiable_gelu_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward
    soft_margin_loss_backward binary_cross_entropy_backward upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_bicubic2d upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward
    upsample_bicubic2d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa
    _upsample_bicubic2d_aa_backward upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
    grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward grid_sampler_3d_backward affine_grid_generator
    affine_grid_generator_backward glu glu_backward outer ger complex polar real imag angle cross linalg_cross isin bucketize
    searchsorted fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_tensor_affine_cachemask_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _amp_update_scale_ one_hot
    vander cov cosine_similarity nan_to_num hardswish floor_divide rsub addr threshold gelu mish _masked_scale _add_relu
    _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
    _unsafe_masked_index _embedding_bag_per_sample_weights_backward rrelu_with_noise_functional
    __irshift__ _amp_update_scale _dirichlet_grad _standard_gamma_grad glu_jvp glu_backward_jvp _upsample_lanczos2d_aa
    _upsample_lanczos2d_aa_backward _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
    _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback_backward quantize_per_tensor quantize_per_channel dequantize
""".split())

# Arithmetic operations for each result, counting a transcendental function as four.
OPERATIONS: dict[str, int] = {
    "addcmul": 3, "addcdiv": 3, "lerp": 3, "native_dropout": 2, "native_dropout_backward": 2, "addmv": 2, "exp": 4, "log": 4,
    "sin": 4, "cos": 4, "tanh": 4, "erf": 4, "pow": 4, "rsqrt": 4, "sqrt": 4, "sigmoid": 6, "log1p": 4, "expm1": 4, "gelu": 8,
    "gelu_backward": 14, "silu": 7, "silu_backward": 10, "mish": 10, "mish_backward": 14, "softplus": 8, "softplus_backward": 6,
    "elu": 5, "elu_backward": 4, "glu": 7, "glu_backward": 10, "tanh_backward": 3, "sigmoid_backward": 3, "hardswish": 3,
    "hardswish_backward": 4, "log_sigmoid_forward": 8, "log_sigmoid_backward": 6, "threshold_backward": 1, "logaddexp": 10,
    "upsample_linear1d": 3, "upsample_bilinear2d": 7, "upsample_trilinear3d": 15, "upsample_bicubic2d": 31,
    "upsample_linear1d_backward": 3, "upsample_bilinear2d_backward": 7, "upsample_trilinear3d_backward": 15,
    "grid_sampler_2d": 13, "grid_sampler_2d_backward": 26, "grid_sampler_3d": 25, "grid_sampler_3d_backward": 50,
    "_thnn_fused_lstm_cell": 30, "_thnn_fused_gru_cell": 24,
}

# Passes over the data. A normalisation reads its input once for the statistics and once to apply them.
REDUCTIONS: dict[str, int] = {
    **dict.fromkeys("""
        sum mean nansum nanmean prod amax amin aminmax max min argmax argmin all any count_nonzero norm linalg_vector_norm dist
        cumsum cumprod cummax cummin logcumsumexp nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
        nll_loss mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy
        binary_cross_entropy_with_logits multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward
        multilabel_margin_loss_backward kl_div trace max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        avg_pool2d_backward avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward fractional_max_pool2d_backward segment_reduce
        _segment_reduce_backward _foreach_norm renorm bincount histc sum_to_size _ctc_loss _ctc_loss_backward embedding_renorm_
        nonzero_static max_unpool2d max_unpool3d
        _is_all_true _is_any_true hash_tensor histogram _histogramdd_bin_edges _histogramdd_from_bin_cts
        _histogramdd_from_bin_tensors linalg__powsum masked_select _cummax_helper _cummin_helper fractional_max_pool3d_backward
        max_pool2d_backward adaptive_avg_pool3d_backward embedding_renorm batch_norm_gather_stats
        batch_norm_gather_stats_with_counts
    """.split(), 1),
    **dict.fromkeys("""
        var std var_mean std_mean logsumexp median nanmedian mode kthvalue topk sort argsort msort unique_consecutive
        multinomial native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_functional _native_batch_norm_legit_no_training cudnn_batch_norm miopen_batch_norm
        _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update batch_norm_stats batch_norm_elemt
        _fused_rms_norm _weight_norm_interface _softmax_backward_data _log_softmax_backward_data _cdist_forward _cdist_backward
        _pdist_forward _euclidean_dist _pdist_backward
        nonzero _to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _coalesce
        _unique _unique2 unique_dim unique_dim_consecutive batch_norm_update_stats _masked_softmax_backward
        _fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional
    """.split(), 2),
    **dict.fromkeys("""
        _softmax _log_softmax _safe_softmax softmax log_softmax native_layer_norm_backward native_group_norm_backward
        native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward
        batch_norm_backward_reduce batch_norm_backward_elemt _fused_rms_norm_backward _weight_norm_interface_backward
        _masked_softmax
    """.split(), 3),
}

# Each result looks at its whole window, so overlapping windows read elements more than once.
WINDOWS: frozenset[str] = frozenset("""
    max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d avg_pool1d max_pool1d max_pool2d max_pool3d
    fractional_max_pool2d fractional_max_pool3d
""".split())

ADAPTIVE_POOLS: frozenset[str] = frozenset("""
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
""".split())

# Reading a value decides what the program does next: shapes alone cannot answer.
READS_VALUES: frozenset[str] = frozenset("""
    _local_scalar_dense item is_nonzero equal nonzero masked_select unique _unique2 unique_dim _nested_view_from_jagged
""".split())

# The values of the results may be known though those of the operands are not.
OWN_VALUES: frozenset[str] = frozenset("""
    zeros_like ones_like full_like new_zeros new_ones new_full fill_ zero_ isnan isinf isfinite isposinf isneginf eq ne topk argmax
    argmin sort argsort max min uniform_ normal_ random_ bernoulli_ rand_like randn_like randint_like exponential_
""".split())

# Writes that leave a value as it was in a healthy step: no gradient is infinite.
KEEPS_VALUES: frozenset[str] = frozenset(("_amp_foreach_non_finite_check_and_unscale_",))

# Of the first operand they take shape, type and device, and read nothing.
SHAPED_LIKE: frozenset[str] = frozenset("""
    zeros_like ones_like full_like new_zeros new_ones new_full fill zero _new_zeros_with_same_feature_meta
    rand_like randn_like randint_like uniform random exponential cauchy geometric log_normal normal_functional bernoulli.p
    _philox_normal _philox_uniform
""".split())

# In place, without looking at what was there.
OVERWRITING: frozenset[str] = frozenset("""
    copy_ fill_ zero_ normal_ uniform_ bernoulli_ exponential_ random_ cauchy_ geometric_ log_normal_ _foreach_copy_
    _foreach_zero_ set_ split_with_sizes_copy chunk_cat _philox_normal_ _philox_uniform_
""".split())
# fmt: on
