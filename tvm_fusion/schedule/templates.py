"""The templates of this package, in the order in which they are asked."""

from ..core.contract.template import Template
from ..core.contract.templates import provide
from .attention.template import Attention
from .columns.template import ColumnReductions
from .contraction.back_to_back.template import BackToBackGemm
from .contraction.cpu.templates.gemm import CpuContraction
from .contraction.cpu.templates.grouped import GroupedGemm
from .contraction.cpu.templates.norm import NormGemm
from .contraction.gpu.grouped_gemm_template import GpuGroupedGemm
from .contraction.gpu.template import GpuContraction
from .convolution.depthwise.gpu_template import GpuDepthwise
from .convolution.template import CpuConvolution
from .elementwise.template import Elementwise
from .recurrent.template import Recurrent
from .rows.split.template import SplitRows
from .rows.template import Rows
from .scan.template import PrefixSum
from .single.template import Single
from .sort.template import RankSort


def _templates(is_gpu: bool) -> tuple[Template, ...]:
    return (
        Elementwise(is_gpu),
        *((ColumnReductions(),) if is_gpu else ()),
        Rows(),
        *((SplitRows(),) if is_gpu else ()),
        Attention(is_gpu),
        *((BackToBackGemm(),) if is_gpu else ()),
        *((GpuDepthwise(), GpuContraction()) if is_gpu else (CpuConvolution(), CpuContraction())),
        NormGemm(),
        GpuGroupedGemm() if is_gpu else GroupedGemm(),
        PrefixSum(is_gpu),
        Recurrent(is_gpu),
        RankSort(is_gpu),
        Single(is_gpu),
    )


provide(cpu=_templates(is_gpu=False), gpu=_templates(is_gpu=True))
