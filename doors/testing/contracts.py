"""Contract suites: subclass one in a test, and it checks an implementation of a plugin's interface, or a processor."""

from penstock.plugins.testing.contracts.changelog import ChangelogContract
from penstock.plugins.testing.contracts.command import CommandContract
from penstock.plugins.testing.contracts.engine import EngineContract
from penstock.plugins.testing.contracts.handler import HandlerContract
from penstock.plugins.testing.contracts.log import LogContract
from penstock.plugins.testing.contracts.log_changelog import LogChangelogContract
from penstock.plugins.testing.contracts.processor import ProcessorContract
from penstock.plugins.testing.contracts.program_runs import ClockStep
from penstock.plugins.testing.contracts.renderer import RendererContract
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.plugins.testing.contracts.setting import SettingContract, VocabularyContract
from penstock.plugins.testing.contracts.state_store import StateStoreContract
from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.plugins.testing.contracts.store_kinds import StoreKindsContract

__all__ = [
    "ChangelogContract",
    "ClockStep",
    "CommandContract",
    "EngineContract",
    "HandlerContract",
    "LogChangelogContract",
    "LogContract",
    "ProcessorContract",
    "RendererContract",
    "SerdeContract",
    "SettingContract",
    "StateStoreContract",
    "StoreBackendContract",
    "StoreKindsContract",
    "VocabularyContract",
]
