"""Remote workers: the queue over gRPC, for processes that have no access to its database, in any language.

``holdfast_jobs.proto`` is the protocol. ``server`` is a thin layer over the store: leases live in the database and
nowhere else. ``client`` runs handlers with the same worker that runs beside the database.
"""

from __future__ import annotations

from ...core.extras import needed

with needed("Remote workers need grpcio", "grpc"):
    import grpc as _grpc  # noqa: F401 - asked for here, so that the modules below need not
