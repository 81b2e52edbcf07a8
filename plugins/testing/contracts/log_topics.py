"""The part of `LogContract` about topics."""

from __future__ import annotations

import pytest

from penstock import Commit, Log, LogError, OutputBatch, TopicExistsError, TopicPartition, UnknownTopicError

from .expectations import check, expect
from .log_tests import APPLICATION, LogTests, created, everything, output


class TopicTests(LogTests):
    """Topics: created, listed, deleted, and what is missing."""

    def test_topics_that_are_almost_the_same(self, log: Log) -> None:
        """Names that differ in case only are different topics, and one that is there stays, with its partitions."""
        for number, name in enumerate(("topic", "Topic", "TOPIC"), 1):
            log.create_topic(name, number)
            log.append(OutputBatch(name, [b"k"], [name.encode()], [0]))
        for name in ("topic", "Topic", "TOPIC"):
            log.ensure_topic(name, 4)
        for number, name in enumerate(("topic", "Topic", "TOPIC"), 1):
            expect(log.topic(name).partitions, number, f"partitions of {name!r}, which was there before ensure_topic")
            found = [each.value for each in everything(log, name)]
            expect(found, [name.encode()], f"records of {name!r}, beside topics whose names differ in case only")

    def test_topics_are_listed_as_created(self, log: Log) -> None:
        """With partitions, settings, and whether they are internal."""
        expect(log.topics(), {})
        log.create_topic("plain", 3)
        log.put_meta(APPLICATION, "note", b"")
        own = f"{APPLICATION}-set-changelog"
        log.create_topic(own, 1, {"cleanup.policy": "compact"}, internal=True)
        found = log.topics()
        expect(set(found), {"plain", own})
        check(found["plain"].partitions == 3 and not found["plain"].internal)
        check(found[own].internal and found[own].config["cleanup.policy"] == "compact")

    def test_one_topic_can_be_asked_for(self, log: Log) -> None:
        """As `topics` describes it, and by an id that another topic of the same name does not have."""
        log.put_meta(APPLICATION, "note", b"")
        own = f"{APPLICATION}-set-changelog"
        log.create_topic(own, 2, {"cleanup.policy": "compact"}, internal=True)
        found = log.topic(own)
        expect((found.name, found.partitions, found.internal), (own, 2, True))
        expect(found.config["cleanup.policy"], "compact")
        expect(log.topic(own).id, found.id)
        log.delete_topic(own)
        with pytest.raises(UnknownTopicError, match=own):
            log.topic(own)
        log.create_topic(own, 3)
        again = log.topic(own)
        expect(again.partitions, 3)
        check(again.id != found.id or not found.id)

    def test_the_ids_of_topics(self, log: Log) -> None:
        """Of those that exist, as `topic` returns them; a topic that is made again has another one."""
        for name in ("a", "b"):
            log.create_topic(name, 2)
        expect(log.topic_ids([]), {})
        before = dict(log.topic_ids(["a", "b", "missing"]))
        expect(before, {name: log.topic(name).id for name in ("a", "b")})
        log.create_topic("missing", 1)
        log.delete_topic("a")
        expect(log.topic_ids(["a", "b"]), {"b": before["b"]})
        log.create_topic("a", 2)
        now = dict(log.topic_ids({"missing", "a", "b"}))
        check(set(now) == {"missing", "a", "b"} and now["b"] == before["b"])
        if before["a"]:
            expect(len({before["a"], *now.values()}), 4)
        else:
            check(not any(now.values()))

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
    def test_a_bad_topic_name_is_refused(self, log: Log, name: str) -> None:
        """As Kafka does."""
        with pytest.raises(LogError):
            log.create_topic(name, 1)
        expect(log.topics(), {})

    def test_a_topic_that_exists_is_refused(self, log: Log) -> None:
        """And stays as it was."""
        log.create_topic("t", 2)
        with pytest.raises(TopicExistsError, match="t"):
            log.create_topic("t", 3)
        expect(log.topics()["t"].partitions, 2)

    def test_an_internal_topic_is_made_once(self, log: Log) -> None:
        """By whichever process comes first."""
        own = f"{APPLICATION}-set-changelog"
        for _ in range(2):
            log.ensure_topic(own, 1, {"cleanup.policy": "compact"})
        expect(log.topics()[own].partitions, 1)

    def test_an_unknown_setting_is_refused_with_near_names(self, log: Log) -> None:
        """A setting that is misspelled and ignored is found when the disk is full."""
        with pytest.raises(LogError, match=r"retention\.mss"):
            log.create_topic("t", 1, {"retention.mss": "1"})
        with pytest.raises(LogError, match=r"retention\.ms"):
            log.create_topic("t", 1, {"retention.ms": "soon"})
        expect(log.topics(), {})

    @pytest.mark.parametrize("partitions", [0, -1])
    def test_a_topic_needs_a_partition(self, log: Log, partitions: int) -> None:
        """At least one."""
        with pytest.raises(LogError):
            log.create_topic("t", partitions)

    def test_a_missing_topic_is_named(self, log: Log) -> None:
        """By every method that takes one."""
        log.create_topic("invoices", 1)
        missing = [TopicPartition("invoice", 0)]
        for call in (
            lambda: log.delete_topic("invoice"),
            lambda: log.start_offsets(missing),
            lambda: log.end_offsets(missing),
            lambda: log.fetch(missing[0], 0, 1, 1),
            lambda: log.append(output("invoice", 1)),
            lambda: log.purge(missing[0], 0),
            lambda: log.offsets_for_time(missing, 0),
            lambda: log.committed(APPLICATION, missing),
            lambda: log.set_positions(APPLICATION, {missing[0]: 0}),
            lambda: log.open_committer(APPLICATION, "0_0", missing),
        ):
            with pytest.raises(UnknownTopicError, match="'?invoice'?"):
                call()

    def test_known_ends_are_had_without_the_others(self, log: Log) -> None:
        """A partition whose end cannot be had now is left out: of a missing topic, or without a leader."""
        [partition] = created(log, "t")
        log.append(output("t", 5))
        for stable in (True, False):
            found = log.known_end_offsets([TopicPartition("gone", 0), partition], stable=stable)
            expect(found, {partition: 5})
        expect(log.known_end_offsets([]), {})

    def test_a_missing_partition_is_named(self, log: Log) -> None:
        """Also a negative one, which is no way to count from the end."""
        log.create_topic("t", 2)
        for partition in (2, -1):
            with pytest.raises(LogError, match=str(partition)):
                log.end_offsets([TopicPartition("t", partition)])
            with pytest.raises(LogError, match=str(partition)):
                log.fetch(TopicPartition("t", partition), 0, 1, 1)

    def test_a_topic_made_again_is_a_new_one(self, log: Log) -> None:
        """It has no records and no positions of the deleted one."""
        [partition] = created(log, "t")
        log.append(output("t", 5))
        log.open_committer(APPLICATION, "0_0", [partition]).commit(Commit({partition: 3}, "v1"), [])
        log.delete_topic("t")
        log.create_topic("t", 2)
        expect(log.end_offsets([partition]), {partition: 0})
        expect(log.committed(APPLICATION, [partition]), {partition: None})
        log.append(output("t", 1))
        expect(len(everything(log, "t")), 1)
