r"""A music chart: the five songs of each genre that are played most. Teaches queries over HTTP while it runs.

$ pip install 'penstock-streams[serve]'
$ penstock topics create songs plays --partitions 2
$ printf '%s\n' 's1:{"title":"Blue","genre":"jazz"}' 's2:{"title":"Red","genre":"jazz"}' |
      penstock produce songs --key-separator : --key-serde str --value-serde json
$ penstock run examples/09_music_chart.py:application --engine embedded --trigger continuous &
$ printf 'anna:s1\nben:s2\nanna:s2\n' | penstock produce plays --key-separator :
$ curl 'localhost:8080/v1/stores/chart/get?key=jazz'
$ curl 'localhost:8080/v1/stores/plays-of-songs/entries'
"""

from __future__ import annotations

from typing import TypedDict

from penstock import Application
from penstock.dsl import StreamsBuilder


class Song(TypedDict):
    """A song, and how often it was played."""

    title: str
    genre: str
    plays: int


def played(song: Song, plays: int) -> Song:
    """Return a song with its number of plays."""
    return {**song, "plays": plays}


def add(chart: list[Song], song: Song) -> list[Song]:
    """Put a song in its place; the sixth falls out."""
    return sorted([*chart, song], key=lambda each: (-each["plays"], each["title"]))[:5]


def remove(chart: list[Song], song: Song) -> list[Song]:
    """Take out a song that is about to come back with another number of plays."""
    return [each for each in chart if each["title"] != song["title"]]


builder = StreamsBuilder()
songs = builder.table("songs", "songs-by-id", value_serde="json")
# A record of `plays` has the listener as its key and the song as its value.
plays = builder.stream("plays").group_by(lambda song: song).count("plays-of-songs")
by_genre = songs.join(plays, played).group_by(lambda song: song["genre"], value_serde="json")
by_genre.aggregate(list, add, remove, "chart", key_serde="str", value_serde="json")

application = Application("music-chart", builder, state_serde="json", queries="127.0.0.1:8080")
