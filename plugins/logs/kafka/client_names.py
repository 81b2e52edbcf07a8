"""Names of the settings of Kafka's clients: which ones librdkafka has, and which ones only Java's clients have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.program.offset_reset import of_kafka
from penstock.settings.names import CLIENT_PREFIXES, Key, NoCounterpartError, Vocabulary

RENAMED: Mapping[str, str] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
"""Names of Java's clients that librdkafka spells otherwise."""

_KNOWN = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size bootstrap.servers
broker.address.family broker.address.ttl broker.version.fallback builtin.features check.crcs client.dns.lookup
client.id client.rack compression.codec compression.level compression.type connections.max.idle.ms
consume.callback.max.messages coordinator.query.interval.ms debug delivery.report.only.error
delivery.timeout.ms enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence
enable.metrics.push enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes
fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id group.instance.id group.protocol
group.protocol.type group.remote.assignor heartbeat.interval.ms https.ca.location https.ca.pem interceptors
internal.termination.signal isolation.level linger.ms log.connection.close log.queue log.thread.name
max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
max.poll.records message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy offset.store.method
offset.store.path offset.store.sync.interval.ms partition.assignment.strategy partitioner plugin.library.paths
produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.kbytes
queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages
queuing.strategy receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms
reconnect.backoff.ms request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
security.protocol session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms
socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location
ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
KNOWN = frozenset(_KNOWN.split())
"""Names of librdkafka 2.16."""

_JAVA_ONLY = """
bootstrap.controllers bootstrap.resolve.timeout.ms buffer.memory buffer.memory.allocation.strategy
compression.gzip.level compression.lz4.level compression.zstd.level default.api.timeout.ms exclude.internal.topics
interceptor.classes internal.throw.on.fetch.stable.offset.unsupported key.deserializer key.serializer max.block.ms
metadata.cluster.check.enable metadata.max.idle.ms metric.reporters metrics.num.samples metrics.recording.level
metrics.sample.window.ms partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys partitioner.rack.aware sasl.client.callback.handler.class sasl.jaas.config
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.allow.unverified.audience
sasl.oauthbearer.allow.unverified.issuer sasl.oauthbearer.assertion.template.file sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope.claim.name
security.providers share.acquire.mode socket.connection.setup.timeout.max.ms ssl.enabled.protocols
ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.type
ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type transaction.two.phase.commit.enable
value.deserializer value.serializer
"""
JAVA_ONLY = frozenset(_JAVA_ONLY.split())
"""Names of Kafka 4.4's consumer, producer and admin client that librdkafka does not have."""

_ADVICE: Mapping[str, str] = {
    "buffer.memory": "set producer.queue.buffering.max.kbytes",
    "bootstrap.resolve.timeout.ms": "set `task_timeout` for how long a task tries again",
    "default.api.timeout.ms": "set socket.timeout.ms, or `task_timeout` for how long a task tries again",
    "key.deserializer": "serdes belong to sources and sinks, or set `key_serde`",
    "key.serializer": "serdes belong to sources and sinks, or set `key_serde`",
    "max.block.ms": "set producer.message.timeout.ms, or `task_timeout` for how long a task tries again",
    "metadata.cluster.check.enable": "set `cluster_check`",
    "partitioner.class": "give the sink a `partitioner`; the default is Kafka's own",
    "sasl.jaas.config": "set sasl.username and sasl.password",
    "sasl.login.callback.handler.class": (
        "set sasl.oauthbearer.method=oidc and sasl.oauthbearer.client.id, .client.secret, .token.endpoint.url"
    ),
    "ssl.keystore.certificate.chain": "set ssl.certificate.pem",
    "ssl.keystore.key": "set ssl.key.pem",
    "ssl.keystore.type": (
        "ssl.keystore.location is a PKCS#12 file; for PEM set ssl.certificate.location and ssl.key.location"
    ),
    "ssl.truststore.certificates": "set ssl.ca.pem",
    "ssl.truststore.location": "set ssl.ca.location to a PEM file",
    "ssl.truststore.password": "set ssl.ca.location to a PEM file, which needs none",
    "ssl.truststore.type": "set ssl.ca.location to a PEM file",
    "value.deserializer": "serdes belong to sources and sinks, or set `value_serde`",
    "value.serializer": "serdes belong to sources and sinks, or set `value_serde`",
}


def advice(name: str) -> str:
    """Return the setting to use in place of a name of JAVA_ONLY."""
    return _ADVICE.get(name, "leave it out")


class ClientNames(Vocabulary):
    """The vocabulary of Kafka's clients."""

    owner = "Kafka's clients"

    prefixes = (*(f"{each}." for each in CLIENT_PREFIXES), "main.consumer.")

    def names(self) -> Iterable[str]:
        return sorted(KNOWN | set(RENAMED) | JAVA_ONLY)

    def knows(self, name: str) -> bool:
        _, plain = _split(name)
        return plain in KNOWN or plain in RENAMED or plain in JAVA_ONLY

    def translate(self, name: str, value: Any) -> tuple[Key, Any]:
        prefix, plain = _split(name)
        if plain == "auto.offset.reset":
            return "offset_reset", of_kafka(value)
        if plain in JAVA_ONLY:
            raise NoCounterpartError(f"{name!r} is one of Java's clients only, not librdkafka's: {advice(plain)}")
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        return ("clients", prefix + RENAMED.get(plain, plain)), value


def _split(name: str) -> tuple[str, str]:
    head, _, rest = name.removeprefix("main.").partition(".")
    return (f"{head}.", rest) if head in CLIENT_PREFIXES and rest else ("", name)


NAMES = ClientNames()
