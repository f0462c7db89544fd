"""FL-PROVIDER-DP: training whose result hardly depends on any one provider (Tito et al., 2024, Algorithm 1).

Per round, in each drawn client: ``rounds.client_round(model, pages, plan, local, weights=..., client=...,
clients_drawn=..., randomness=...)``. On the server: ``rounds.server_step(state, updates, plan, optimiser,
clients_drawn=..., randomness=...)``, with no update where no client was drawn. A ``Ledger`` begins each round first.
``rounds.train_privately`` does all of it in one process; with one client it is centralised training.
"""
