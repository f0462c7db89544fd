"""Improved DLG (Zhao, Mopuri and Bilen, 2020).

iDLG reads the label of a single example off the sign of the last layer's gradient and then runs DLG.
A question-answering client has no single label, and in GI-DQA's protocol question and answer are known
to every attack: the label step has nothing to add, and the rows of DLG and iDLG agree, as in Table 1.
"""

from dataclasses import replace

from docleak.attacks.gradients import dlg

ATTACK = replace(
    dlg.ATTACK, name="idlg", paper="Zhao et al. (2020)", summary="DLG with the label given instead of optimised"
)
