"""Secure aggregation: the server learns the sum of the silos' updates, and no silo's own.

The protocol is Bonawitz et al. (2017), "Practical secure aggregation for privacy-preserving machine learning", in its
variant with signatures and a consistency check: pairwise masks that cancel in the sum modulo 2^32, a mask of its own
per silo, and Shamir shares of the secrets of both kinds, so that silos may drop out at any step. Appendix F of Tito et
al. (2024) asks for masks that cancel in the sum, and refers to that protocol. It only composes primitives of the
package ``cryptography``; Shamir's scheme is plain arithmetic in a published prime field. We add a check value per silo
(HKDF of its seed under another label), so that a wrong share ends the round instead of spoiling the sum, and signatures
on what the silos send.

What holds, with K invited silos and threshold t (more than K / 2; the default is the published floor(2K / 3) + 1):

- An honest-but-curious server, together with up to t - 2 silos, learns the sum over at least t silos and nothing more
  of the others' updates than that sum says. Together with t or more silos it learns every update.
- A server that lies (other keys, other silos' shares, old messages, other lists of who dropped out) is noticed and the
  round ends without a sum, together with up to min(t - 2, 2t - K - 1) silos, if every silo pins the others' keys.
- The sum is exact in fixed point, or the round ends with a FederationError: never a wrong sum from a lost, repeated or
  changed message, or from an update too large for its words.

What does not hold: docs/secure-aggregation.md says it at length. Public are who takes part, who drops out when,
the threshold, the number of words and the fixed point; not n_k, of which the sum alone is learned. The sum itself leaks
what a sum leaks; poisoned updates cannot be looked at; a server can still choose the weights it sends.

A round is five exchanges. The silo's side is pure functions in ``silo``, the server's side is ``server.Aggregation``,
``simulate`` is all of it in one process, ``fixed_point`` turns updates into words and back.
"""
