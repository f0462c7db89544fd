"""MMGIA (Zheng et al., IJCAI 2025): picture and text of one client, reconstructed together.

Stage 1 attacks each gradient on its own (eq. 2-3; any other attack can be put there), stage 2 draws both together in an
aligner's space, and so on until they are similar enough (eq. 11). What is returned is, per modality, what matched the
gradient best: stage 2 knows nothing of the gradient, and is where the next round begins. TAG and LAMP alone are the
paper's baselines, beside Inverting Gradients on the picture.
"""

from docleak.attacks.gradients import dlg, inverting_gradients
from docleak.attacks.pairs.align import Refinement
from docleak.attacks.pairs.gifd import GIFD
from docleak.attacks.pairs.single import IMAGE, LAMP, SPAN, TAG
from docleak.attacks.pairs.together import PairAttack

ATTACK = PairAttack(
    name="mmgia",
    paper="Zheng et al. (2025)",
    summary="both modalities, aligned in a shared space by the quality of each",
    image=IMAGE,
    text=LAMP,
    refine=Refinement(),
)

DIRECT = PairAttack(
    name="mmgia-d",
    paper="Zheng et al. (2025), eq. 5",
    summary="both modalities, aligned directly",
    image=IMAGE,
    text=LAMP,
    refine=Refinement(target="direct"),
)

GUIDED = PairAttack(
    name="mmgia-prior",
    paper="after Zheng et al. (2025); ours",
    summary="both modalities, alignment as a term of each attack's objective",
    image=IMAGE,
    text=LAMP,
    refine=Refinement(how="prior", rounds=1),
)

STAGE_1 = PairAttack(
    name="mmgia-stage1",
    paper="Zheng et al. (2025), eq. 2-3",
    summary="MMGIA's first stage alone: what the second one must improve on",
    image=IMAGE,
    text=LAMP,
)

TAG_ALONE = PairAttack(
    name="tag",
    paper="Deng et al. (2021); Zhu et al. (2019)",
    summary="TAG on the text, DLG on the picture, each alone",
    image=dlg.ATTACK,
    text=TAG,
)

LAMP_ALONE = PairAttack(
    name="lamp",
    paper="Balunović et al. (2022); Geiping et al. (2020)",
    summary="LAMP on the text, Inverting Gradients on the picture, each alone",
    image=inverting_gradients.ATTACK,
    text=LAMP,
)

GIFD_ALONE = PairAttack(
    name="gifd",
    paper="Fang et al. (2023); Balunović et al. (2022)",
    summary="GIFD on the picture, LAMP on the text, each alone",
    image=GIFD,
    text=LAMP,
)

SPAN_ALONE = PairAttack(
    name="span",
    paper="docleak, after Petrov et al. (2024)",
    summary="the text out of the span of the first layer's gradients, the picture as mmgia's stage 1",
    image=IMAGE,
    text=SPAN,
)
