"""MGIS (Liu et al., 2024), as MMGIA's section 5.1 runs it: the text's class helps the picture's reconstruction.

Squared gradient differences on both. The published attack optimises the text's class and hands it to the picture; here
every attack reads the classes out of the gradient, so that what MGIS passes on is already known (its authors find out
which modality came out better by looking at the truth, which no attack of docleak is shown).
"""

from docleak.attacks.gradients import dlg
from docleak.attacks.pairs.single import DLG
from docleak.attacks.pairs.together import PairAttack

ATTACK = PairAttack(
    name="mgis",
    paper="Liu et al. (2024)",
    summary="squared differences on both, the text's class used for the picture",
    image=dlg.ATTACK,
    text=DLG,
)
