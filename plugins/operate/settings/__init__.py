"""The settings of our plugins and the engines, by name, and a vocabulary: Kafka Streams' names; may import core."""

from __future__ import annotations

from penstock import Components, hookimpl


@hookimpl
def penstock_settings() -> Components:
    """Return the settings that one of our plugins alone reads; each is declared in that plugin."""
    planning, metrics = "penstock.plugins.engine.run.settings", "penstock.plugins.engine.run.settings"
    registry = "penstock.plugins.serdes.registry.settings"
    queries = "penstock.plugins.state.queries.settings"
    return {
        "engine": "penstock.plugins.engine.run.settings:ENGINE",
        "state_listener": "penstock.plugins.engine.run.settings:STATE_LISTENER",
        "uncaught_exception_handler": "penstock.plugins.engine.run.settings:UNCAUGHT_EXCEPTION_HANDLER",
        "processes": "penstock.plugins.engine.run.settings:PROCESSES",
        "standby_listener": "penstock.plugins.state.copies.settings:STANDBY_LISTENER",
        "schema_registry": f"{registry}:SCHEMA_REGISTRY",
        "schema_registry_user_info": f"{registry}:SCHEMA_REGISTRY_USER_INFO",
        "checkpoint_dir": "penstock.plugins.engine.program.checkpoint_files:CHECKPOINT_DIR",
        "max_records_per_batch": f"{planning}:MAX_RECORDS_PER_BATCH",
        "metrics_host": f"{metrics}:METRICS_HOST",
        "metrics_interval": f"{metrics}:METRICS_INTERVAL",
        "metrics_port": f"{metrics}:METRICS_PORT",
        "metrics_reporters": f"{metrics}:METRICS_REPORTERS",
        "num_standby_replicas": "penstock.plugins.state.copies.settings:NUM_STANDBY_REPLICAS",
        "racks": "penstock.plugins.state.copies.settings:RACKS",
        "queries": f"{queries}:QUERIES",
        "application_server": f"{queries}:APPLICATION_SERVER",
        "queries_token": f"{queries}:QUERIES_TOKEN",
        "queries_excluded": f"{queries}:QUERIES_EXCLUDED",
        "queries_masked": f"{queries}:QUERIES_MASKED",
        "queries_console": f"{queries}:QUERIES_CONSOLE",
        "queries_actions": f"{queries}:QUERIES_ACTIONS",
        "queries_actions_token": f"{queries}:QUERIES_ACTIONS_TOKEN",
        "parallelism": "penstock.plugins.spark.settings:PARALLELISM",
        "punctuation_interval": f"{planning}:PUNCTUATION_INTERVAL",
    }


@hookimpl
def penstock_engines() -> Components:
    """Return the engines for the setting `engine`."""
    return {
        "embedded": "penstock.plugins.engine.run.embedded:EmbeddedEngine",
        "spark": "penstock.plugins.spark.engine:SparkEngine",
    }


@hookimpl
def penstock_companions() -> Components:
    """Return the companions of runs, in the order in which they begin."""
    return {
        "metrics": "penstock.plugins.engine.run.metrics.endpoint:MetricsEndpoint",
        "metrics_reporters": "penstock.plugins.engine.run.metrics.reporting:MetricsReporters",
        "status": "penstock.plugins.engine.run.statistics:WrittenStatus",
        "queries": "penstock.plugins.state.queries.run_server:RunServer",
        "console": "penstock.plugins.operate.console:ConsolePages",
        "standbys": "penstock.plugins.state.copies.companions:WaitingStandbys",
    }


@hookimpl
def penstock_metrics_reporters() -> Components:
    """Return the reporters for the setting `metrics_reporters`."""
    return {"opentelemetry": "penstock.plugins.engine.run.metrics.opentelemetry:OpenTelemetryReporter"}


@hookimpl
def penstock_settings_vocabularies() -> Components:
    """Return Kafka Streams' names."""
    return {"kafka_streams": "penstock.plugins.operate.settings.kafka_streams:NAMES"}
