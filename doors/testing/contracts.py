"""Contract suites: subclass one in a test, and it checks an implementation of a plugin's interface, or a processor."""

from penstock.plugins.testing.contracts.changelog import ChangelogContract
from penstock.plugins.testing.contracts.handler import HandlerContract
from penstock.plugins.testing.contracts.log import LogContract
from penstock.plugins.testing.contracts.log_changelog import LogChangelogContract
from penstock.plugins.testing.contracts.processor import ProcessorContract
from penstock.plugins.testing.contracts.program_runs import ClockStep
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.plugins.testing.contracts.sink import SinkContract
from penstock.plugins.testing.contracts.staged_sink import StagedSinkContract
from penstock.plugins.testing.contracts.state_store import StateStoreContract
from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.plugins.testing.contracts.store_kinds import StoreKindsContract

__all__ = [
    "ChangelogContract",
    "ClockStep",
    "HandlerContract",
    "LogChangelogContract",
    "LogContract",
    "ProcessorContract",
    "SerdeContract",
    "SinkContract",
    "StagedSinkContract",
    "StateStoreContract",
    "StoreBackendContract",
    "StoreKindsContract",
]
