"""Laws of STOMP's frames: any cut of the bytes gives the same frames, and garbage is refused, never raised."""

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.protocols.stomp.codec import V10, V12, Decoder, Frame, encode_frame

_CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_headers = st.dictionaries(
    _texts.filter(lambda name: bool(name) and name != "content-length" and not name.endswith("\r")), _texts, max_size=4
)
_frames = st.tuples(st.sampled_from(["SEND", "MESSAGE", "ACK"]), _headers, st.binary(max_size=300))


def _shown(frames: list[Frame]) -> list[tuple[str, dict[str, str], bytes]]:
    return [
        (frame.command, {name: value for name, value in frame.headers.items() if name != "content-length"}, frame.body)
        for frame in frames
    ]


@given(st.lists(_frames, max_size=4), st.lists(st.integers(0, 2000), max_size=6), st.binary(max_size=3))
def test_any_cut_of_the_bytes_gives_the_frames_that_were_encoded(
    made: list[tuple[str, dict[str, str], bytes]], cuts: list[int], beats: bytes
) -> None:
    between = b"\n" * len(beats)
    data = _CONNECT + between.join(
        encode_frame(command, list(headers.items()), V12, body) for command, headers, body in made
    )
    decoder = Decoder()
    found: list[Frame] = []
    at = 0
    for cut in sorted(min(cut, len(data)) for cut in [*cuts, len(data)]):
        found += decoder.feed(data[at:cut])
        at = cut

    assert decoder.failure is None
    assert _shown(found)[1:] == [(command, headers, body) for command, headers, body in made]
    assert decoder.held_bytes == 0


@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
@example([b"SEND\ncontent-length:3\n\nabc", b"\0"], True)
@example([b"\\\n\n", b"\0"], True)
def test_garbage_is_frames_or_a_failure_and_the_same_however_it_is_cut(pieces: list[bytes], greets: bool) -> None:
    start = [_CONNECT] if greets else []
    by_piece, at_once = Decoder(100), Decoder(100)
    found: list[Frame] = []
    for piece in [*start, *pieces]:
        found += by_piece.feed(piece)

    whole = at_once.feed(b"".join([*start, *pieces]))

    assert _shown(found) == _shown(whole)
    assert (by_piece.failure is None) == (at_once.failure is None)


@given(st.dictionaries(_texts.filter(bool), _texts, max_size=4), st.binary(max_size=50))
def test_no_header_of_version_1_0_makes_another_one(headers: dict[str, str], body: bytes) -> None:
    head = encode_frame("ERROR", list(headers.items()), V10, body).partition(b"\n\n")[0]

    assert head.count(b"\n") == len(headers) + (1 if body else 0)
