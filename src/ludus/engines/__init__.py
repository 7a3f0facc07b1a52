"""Engines that run jobs on other machines: the driver's side.

    jobs ──> LeaseQueue ──> leases ──> a worker on each node (`ludus.node_worker`) ──> reports ──> record

The driver has the store, the budget and the queue. A worker pulls leases of jobs, opens everything else on its node
from the settings, and sends rollouts back as bytes. `ray_engine` is the loop of the driver, `ray_cluster` the only
module that knows Ray, `lease_queue` decides who gets what, and `wire` is what travels.
"""
