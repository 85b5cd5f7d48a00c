"""Objects come back as they were: the same class, the same fields, no constructor run again."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import functools
import json
import sys
import threading
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import pydantic
import pytest
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, HttpUrl, PrivateAttr, RootModel, field_validator

from agent_resume.codec import DEFAULT, Codec, ValueCodec, json_value, pickle_codec
from agent_resume.codec_exceptions import StoredException
from agent_resume.errors import OutputNotStorable, StoredValueUnreadable

attrs = pytest.importorskip("attrs", reason="attrs objects are kept where attrs is installed")
msgspec = pytest.importorskip("msgspec", reason="msgspec objects are kept where msgspec is installed")
T = TypeVar("T")
RUNS: list[str] = []


@dataclass
class Base:
    x: Any
    made: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        RUNS.append("Base")
        self.made.append(1)
        self.loose = "set in __post_init__"


@dataclass
class Sub(Base):
    y: int = 2
    _: dataclasses.KW_ONLY
    z: Any = None


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: int
    unset: int = field(init=False)
    inner: FrozenSlots | None = None


@dataclass
class WithInitVar:
    x: int
    scale: dataclasses.InitVar[int] = 1
    kind: typing.ClassVar[str] = "k"

    def __post_init__(self, scale: int) -> None:
        self.x *= scale


@dataclass
class GenericBox(Generic[T]):
    item: T

    @functools.cached_property
    def costly(self) -> int:
        RUNS.append("costly")
        return 7


class Weird(NamedTuple):
    a: int
    b: str = "b"


class RichTuple(Weird):
    pass


class Kind(enum.Enum):
    A = [1, 2]
    B = object()


class Perm(enum.Flag):
    R = 1
    W = 2


class Tokens(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    input_tokens: int = Field(default=0, alias="inputTokens")
    at: dt.datetime | None = None


class Reply(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    text: str
    ratio: float = 0.5
    usage: Tokens | None = None
    _seen: int = PrivateAttr(default=3)

    @field_validator("text")
    @classmethod
    def _shout(cls, value: str) -> str:
        return value + "!"

    @functools.cached_property
    def length(self) -> int:
        return len(self.text)


class LongReply(Reply):
    more: str = "more"


class Page(BaseModel, Generic[T]):
    items: list[T]
    url: HttpUrl | None = None


class IntPage(Page[int]):
    pass


class Names(RootModel[list[str]]):
    pass


@attrs.define
class Attr:
    x: int
    y: list[int] = attrs.Factory(list)
    _hidden: int = 5

    def __attrs_post_init__(self) -> None:
        self.x += 1


@attrs.frozen(cache_hash=True)
class AttrFrozen:
    x: int


class Struct(msgspec.Struct):
    x: int
    y: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        self.x += 1


class FrozenStruct(msgspec.Struct, frozen=True, tag=True, rename="camel"):
    long_name: int


class Text(str):
    __slots__ = ("note",)


class Stack(list):
    def append(self, item: Any) -> None:
        raise RuntimeError("its own methods are not called")

    extend = __init_subclass__ = append  # type: ignore[assignment]


class Attributes(dict):
    """A dict whose items are attributes too, as configuration libraries make them."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise RuntimeError("its own methods are not called")


class LooseStruct(msgspec.Struct, dict=True, frozen=True):
    items: list[Any]

    def __post_init__(self) -> None:
        RUNS.append("LooseStruct")
        self.items.append("default")
        msgspec.structs.force_setattr(self, "made", len(RUNS))


class SlottedModel(BaseModel):
    __slots__ = ("beside",)
    x: int


class NotTheVeryPage(Page[int]):
    pass


# It says of itself that it is another class.
NotTheVeryPage.__pydantic_generic_metadata__ = Page[int].__pydantic_generic_metadata__


@dataclass
class List(Generic[T]):
    """Has the name of a type of ``typing``."""

    item: T


@dataclass(slots=True)
class Quota(Exception):
    left: int


@attrs.define
class RateLimited(Exception):
    retry_after: int


class SlottedError(Exception):
    __slots__ = ("__secret", "unset")

    def __init__(self, secret: Any) -> None:
        super().__init__("m")
        self.__secret = secret

    def secret(self) -> Any:
        return self.__secret


class ApiError(Exception):
    def __init__(self, *, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def there_and_back(value: Any, codec: Codec = DEFAULT, **options: Any) -> Any:
    encoded, fresh = codec.settle(value, **options)
    assert encoded.format == "tagged"
    json.loads(encoded.text)
    again = codec.decode(encoded.format, encoded.text, **options)
    assert type(fresh) is type(again) is type(value)
    return again


def stack(*items: Any) -> Stack:
    made = Stack()
    list.extend(made, items)
    return made


@pytest.mark.parametrize(
    "value",
    [
        Sub(1, z=[Base(2)]),
        WithInitVar(2, scale=5),
        GenericBox[int]([1]),
        Weird(1),
        Kind.A,
        Kind.B,
        Perm.R | Perm.W,
        Tokens(inputTokens=3),
        Reply(text="hi", extra_field=(1,)),
        LongReply(text="hi", usage=Tokens(at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))),
        Page[int](items=[1]),
        Page[Reply](items=[Reply(text="a")]),
        Page[dict[str, list[int | None]]](items=[{"a": [1, None]}]),
        Page[typing.Literal["a", "b"]](items=["a"]),
        Page[Page[int]](items=[Page[int](items=[1])]),
        IntPage(items=[3], url="https://example.org/a?b=c"),
        Names(["a", "b"]),
        RootModel[dict[str, Tokens]]({"a": Tokens()}),
        AnyUrl("postgres://u:p@h/db"),
        Attr(1),
        AttrFrozen(1),
        Struct(1),
        FrozenStruct(2),
        stack(1, (2,)),
        types.SimpleNamespace(a=1, b=(2,)),
        Attributes(a=1),
        collections.OrderedDict(b=1, a=(2,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_comes_back_equal_and_of_its_class(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    if not isinstance(value, enum.Enum):
        assert back is not value
    assert DEFAULT.encode(back) == DEFAULT.encode(value)


def test_no_constructor_runs_again_and_what_it_had_set_is_kept() -> None:
    value = Base((1,))
    value.made.append(2)
    RUNS.clear()
    back = there_and_back(value)
    assert not RUNS
    assert (back.made, back.loose) == ([1, 2], "set in __post_init__")
    assert there_and_back(Attr(1)).x == 2
    assert there_and_back(Struct(1)).x == 2
    assert there_and_back(WithInitVar(2, scale=5)).x == 10
    assert there_and_back(Reply(text="a")).text == "a!"


def test_fields_that_nobody_has_set_stay_unset() -> None:
    value = FrozenSlots(1)
    back = there_and_back(value)
    assert back.x == 1
    assert not hasattr(back, "unset")


def test_values_of_fields_keep_their_own_types_whatever_the_annotation_says() -> None:
    assert type(there_and_back(Reply.model_construct(text="a", ratio=3)).ratio) is int
    assert type(there_and_back(Base(True)).x) is bool
    assert there_and_back(Struct(1, (1, 2))).y == (1, 2)
    assert there_and_back(Struct(1)).y is msgspec.UNSET


def test_cached_properties_are_computed_again_and_not_stored() -> None:
    box = GenericBox((1,))
    assert box.costly == 7
    reply = Reply(text="ab")
    assert reply.length == 3
    RUNS.clear()
    assert "costly" not in DEFAULT.encode(box).text
    assert "length" not in DEFAULT.encode(reply).text
    assert there_and_back(box).costly == 7
    assert RUNS == ["costly"]


def test_a_model_keeps_what_was_set_what_was_extra_and_what_is_private() -> None:
    value = Reply(text="a", added=(1, 2))
    value._seen = {"x": 1}  # type: ignore[assignment]
    back = there_and_back(value)
    assert back.model_fields_set == {"text", "added"}
    assert back.model_extra == {"added": (1, 2)}
    assert back._seen == {"x": 1}
    assert back.model_dump(exclude_unset=True) == value.model_dump(exclude_unset=True)
    assert there_and_back(Reply.model_construct(_fields_set=set(), text="a")).model_fields_set == set()
    value._seen = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(OutputNotStorable, match=r"\$\._seen: _thread.lock"):
        DEFAULT.encode(value)


@pytest.mark.parametrize(
    "argument",
    [
        int | None,
        typing.Optional[int],  # noqa: UP045 - another class than int | None
        typing.Union[None, int, str],  # noqa: UP007
        None,
        type(None),
        typing.List[int],  # noqa: UP006
        list[int],
        List[int],
        typing.Dict[str, typing.List[int | None]],  # noqa: UP006
        typing.Sequence[int],
        collections.abc.Sequence[int],
        typing.Tuple[int, ...],  # noqa: UP006
        tuple[()],
        Page[None],
        Any,
    ],
    ids=repr,
)
def test_a_generic_model_comes_back_as_the_very_class_however_its_argument_is_spelled(argument: Any) -> None:
    value = Page[argument](items=[])
    assert there_and_back(value) == value
    assert there_and_back([value], returns=list[Page[argument]]) == [value]


def test_unions_and_none_as_they_were_stored_before_are_still_read() -> None:
    text = (
        '{"$type":"pydantic","class":{"of":"%s:Page","args":[{"of":"Union","args":["int",null]}]},"value":{"items":[]}}'
    )
    assert type(DEFAULT.decode("tagged", text % __name__)) is Page[typing.Optional[int]]  # noqa: UP045


def test_a_generic_model_that_would_come_back_as_another_class_is_refused() -> None:
    with pytest.raises(OutputNotStorable, match="another class"):
        DEFAULT.encode(NotTheVeryPage(items=[1]))


def test_attributes_beside_the_fields_of_a_struct_are_kept() -> None:
    value = LooseStruct(["a"])
    msgspec.structs.force_setattr(value, "note", {1})
    del vars(value)["made"]
    assert vars(there_and_back(value)) == {"note": {1}}


def test_what_the_init_of_a_struct_does_to_its_containers_is_done_once() -> None:
    value = LooseStruct(["a", [1]])
    assert there_and_back(value).items == ["a", [1], "default"]


def test_attributes_and_slots_beside_the_content_are_kept() -> None:
    model = SlottedModel(x=1)
    object.__setattr__(model, "beside", (5,))
    assert there_and_back(model).beside == (5,)
    assert not hasattr(there_and_back(SlottedModel(x=1)), "beside")
    for table in (collections.Counter("a"), collections.OrderedDict(a=1)):
        table.note = {3}  # type: ignore[union-attr]
        assert there_and_back(table).note == {3}
        assert there_and_back(table) == table


def test_times_that_pydantic_parsed_keep_its_kind_of_zone() -> None:
    for text in ("2026-01-31T09:08:07Z", "2026-01-31T09:08:07+05:30", "2026-01-31T09:08:07-03:00"):
        value = Tokens.model_validate({"at": text})
        back = there_and_back(value)
        assert back == value
        assert repr(back.at) == repr(value.at)


def test_secrets_of_pydantic_are_refused_rather_than_written_down() -> None:
    with pytest.raises(OutputNotStorable) as caught:
        DEFAULT.encode({"key": pydantic.SecretStr("sk-test-123")})
    assert "sk-test-123" not in str(caught.value)


def test_subclasses_of_builtins_keep_class_content_and_attributes() -> None:
    text = Text("a\udc81")
    text.note = (1,)
    back = there_and_back([text])[0]
    assert (type(back), str(back), back.note) == (Text, "a\udc81", (1,))
    rich = RichTuple(1, "c")
    rich.extra = {2}
    assert there_and_back(rich).extra == {2}
    table = Attributes(a=1)
    table.__dict__["note"] = "n"
    assert vars(there_and_back(table)) == {"note": "n"}


@pytest.mark.parametrize(
    "error",
    [ValueError("a", 1), KeyError("k"), ApiError(status=500), OSError(2, "no", "a.txt"), StopIteration(3)],
    ids=repr,
)
def test_exceptions_that_are_values_keep_class_arguments_and_attributes(error: Exception) -> None:
    error.add_note("a note")
    back = there_and_back({"error": error})["error"]
    assert type(back) is type(error)
    assert (back.args, str(back), vars(back)) == (error.args, str(error), vars(error))
    assert getattr(back, "filename", 0) == getattr(error, "filename", 0)


def test_exceptions_with_slots_keep_what_is_in_them() -> None:
    assert there_and_back([Quota(3)])[0].left == 3
    assert there_and_back([RateLimited(30)])[0].retry_after == 30
    back = there_and_back([SlottedError((1,))])[0]
    assert back.secret() == (1,)
    assert not hasattr(back, "unset")


def test_exceptions_that_cannot_be_kept_become_their_text_on_the_first_run_too() -> None:
    class Local(Exception):
        pass

    group = ExceptionGroup("g", [ValueError("v"), ValueError("w", threading.Lock())])
    for error, kind, text in ((Local("x"), "Local", "x"), (ValueError("y", threading.Lock()), "ValueError", "y")):
        encoded, first = DEFAULT.settle([error])
        again = DEFAULT.decode(encoded.format, encoded.text)
        for value in (first[0], again[0]):
            assert isinstance(value, StoredException)
            assert value.type.endswith(kind)
            assert text in value.text
    back = DEFAULT.settle(group)[1]
    assert isinstance(back, ExceptionGroup)
    assert [type(item) for item in back.exceptions] == [ValueError, StoredException]


# Classes that are missing, moved or changed


def module_with(source: str, name: str = "agent_resume_test_saved") -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(source, module.__dict__)
    return module


@pytest.fixture
def saved() -> Any:
    yield module_with
    sys.modules.pop("agent_resume_test_saved", None)


class Outer:
    @dataclass
    class Saved:
        x: int


SOURCE = "from dataclasses import dataclass\n@dataclass\nclass Saved:\n    x: int\n"


def test_case_029_a_class_that_is_gone_is_an_error_that_names_it(saved: Any) -> None:
    encoded = DEFAULT.encode([saved(SOURCE).Saved(7)])
    del sys.modules["agent_resume_test_saved"]
    with pytest.raises(StoredValueUnreadable, match="agent_resume_test_saved:Saved") as caught:
        DEFAULT.decode(encoded.format, encoded.text)
    assert "import agent_resume_test_saved" in str(caught.value)
    assert caught.value.located("r1", "s1").key == "s1"
    assert "agent_resume_test_saved" not in sys.modules
    assert json_value(encoded.format, encoded.text)[0]["value"] == {"x": 7}


def test_a_class_that_has_moved_is_found_by_returns_by_annotation_and_by_registry(saved: Any) -> None:
    moved = saved(SOURCE)
    encoded = DEFAULT.encode([moved.Saved(7)])
    del sys.modules["agent_resume_test_saved"]

    def annotated() -> list[moved.Saved]:  # type: ignore[name-defined]
        raise AssertionError

    annotated.__annotations__ = {"return": list[moved.Saved]}
    for value in (
        DEFAULT.decode(encoded.format, encoded.text, returns=list[moved.Saved]),
        DEFAULT.decode(encoded.format, encoded.text, hint=annotated),
        DEFAULT.decode(encoded.format, encoded.text, hint=functools.partial(annotated)),
        Codec([moved.Saved]).decode(encoded.format, encoded.text),
    ):
        assert value == [moved.Saved(7)]


def test_a_class_is_not_taken_for_another_of_its_name(saved: Any) -> None:
    first = saved(SOURCE)
    other = saved(SOURCE, "agent_resume_test_other")

    def ask() -> list[Any]:
        raise AssertionError

    ask.__annotations__ = {"return": list[first.Saved]}
    given = {"hint": ask}
    encoded = DEFAULT.encode([other.Saved(7)], **given)
    assert DEFAULT.decode(encoded.format, encoded.text, **given) == [other.Saved(7)]
    assert Codec([other.Saved]).decode(encoded.format, encoded.text) == [other.Saved(7)]
    before = DEFAULT.encode([other.Saved(7)])
    del sys.modules["agent_resume_test_other"]
    with pytest.raises(StoredValueUnreadable, match="agent_resume_test_other:Saved"):
        DEFAULT.decode(encoded.format, encoded.text, **given)
    # Which of two is the one that has moved cannot be known.
    with pytest.raises(StoredValueUnreadable, match="agent_resume_test_other:Saved"):
        saved(SOURCE, "agent_resume_test_third")
        moved = sys.modules.pop("agent_resume_test_third").Saved
        DEFAULT.decode(before.format, before.text, returns=list[first.Saved | moved])
    nested = DEFAULT.encode([Outer.Saved(7)])
    forged = nested.text.replace(__name__, "agent_resume_no_such_module")
    with pytest.raises(StoredValueUnreadable, match="Outer.Saved"):
        DEFAULT.decode("tagged", forged, **given)


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (SOURCE + "    y: int = 5\n", 5),
        (SOURCE + "    y: int\n", "without the field 'y'"),
        (SOURCE.replace("x: int", "z: int = 0"), "field 'x'"),
        ("class Saved:\n    pass\n", "class of another sort"),
        ("Saved = 5", "not in any module"),
        ("from typing import NamedTuple\nclass Saved(NamedTuple):\n    x: int\n", "a namedtuple now"),
    ],
)
def test_a_class_that_has_changed_fits_or_is_an_error(saved: Any, now: str, outcome: Any) -> None:
    encoded = DEFAULT.encode(saved(SOURCE).Saved(7))
    saved(now)
    if isinstance(outcome, int):
        assert DEFAULT.decode(encoded.format, encoded.text).y == outcome
    else:
        with pytest.raises(StoredValueUnreadable, match=outcome):
            DEFAULT.decode(encoded.format, encoded.text)


MODEL = "from pydantic import BaseModel, ConfigDict\nclass Saved(BaseModel):\n    a: int\n"


def test_a_model_that_has_changed_fits_or_is_an_error(saved: Any) -> None:
    encoded = DEFAULT.encode(saved(MODEL).Saved(a=1))
    saved(MODEL + "    b: int\n")
    with pytest.raises(StoredValueUnreadable, match="without the field 'b'"):
        DEFAULT.decode(encoded.format, encoded.text)
    saved(
        MODEL + "    b: int = 5\n    _cache: dict = {}\n    _unset: int\n    model_config = ConfigDict(extra='allow')\n"
    )
    back = DEFAULT.decode(encoded.format, encoded.text)
    assert (back.b, back._cache, back.model_extra) == (5, {}, {})
    assert not hasattr(back, "_unset")
    back.loose = 7
    loose = DEFAULT.encode(back)
    saved(MODEL + "    b: int = 5\n")
    with pytest.raises(StoredValueUnreadable, match="field 'loose'"):
        DEFAULT.decode(loose.format, loose.text)
    half = saved(MODEL).Saved.model_construct()
    assert not hasattr(there_and_back(half), "a")


def test_a_member_that_an_enum_has_lost_is_an_error(saved: Any) -> None:
    encoded = DEFAULT.encode(saved("import enum\nclass Saved(enum.Enum):\n    A = 1\n").Saved.A)
    saved("import enum\nclass Saved(enum.Enum):\n    B = 1\n")
    with pytest.raises(StoredValueUnreadable, match="no member 'A'"):
        DEFAULT.decode(encoded.format, encoded.text)


def test_local_classes_are_kept_where_returns_or_the_registry_finds_them_again() -> None:
    @dataclass
    class Item:
        n: int

    @dataclass
    class Order:
        items: list[Item]

    class SubOrder(Order):
        pass

    Order.__annotations__["items"] = list[Item]
    value = SubOrder([Item(1)])
    with pytest.raises(OutputNotStorable, match="returns="):
        DEFAULT.encode(value)
    back = there_and_back(value, returns=Order)
    assert back == value
    assert type(back.items[0]) is Item
    assert there_and_back(value, Codec([SubOrder, Item])) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"$type":"dataclass","class":"os:system","value":{}}',
        '{"$type":"dataclass","class":"subprocess:Popen","value":{"args":"id"}}',
        '{"$type":"dataclass","class":"agent_resume_no_such_module:X","value":{}}',
        '{"$type":"subclass","class":"builtins:bool","base":"int","value":1}',
        '{"$type":"exception","class":"builtins:dict","value":[]}',
        '{"$type":"enum","class":"json:JSONEncoder","value":"x"}',
        '{"$type":"pydantic","class":"pydantic.main:BaseModel","value":{"x":1}}',
        '{"$type":"pydantic","class":{"of":"os:system","args":["int"]},"value":{}}',
        '{"$type":"codec","name":"pickle","value":{"$type":"bytes","value":""}}',
        '{"$type":"defaultdict","factory":"eval","value":[]}',
        '{"$type":"no such tag","value":1}',
        '{"$type":["unhashable"],"value":1}',
        '{"$type":null}',
        '{"$type":"tuple"}',
        '{"$type":"datetime","value":"sk-test-123"}',
        '{"$type":"datetime","value":"2026-01-01T00:00:00","zone":"../../etc/passwd"}',
        '{"$type":"int","value":"sk-test-123"}',
        '{"$type":"dict","value":[[[],1]]}',
        "not json",
        "",
    ],
)
def test_a_forged_or_broken_text_is_an_error_and_runs_nothing(text: str) -> None:
    before = set(sys.modules)
    with pytest.raises(StoredValueUnreadable) as caught:
        DEFAULT.decode("tagged", text)
    assert not {name for name in set(sys.modules) - before if "no_such" in name}
    assert "sk-test-123" not in str(caught.value)
    assert caught.value.__cause__ is None or "sk-test-123" not in str(caught.value.__cause__)
    json_value("tagged", text)


def test_a_modules_own_getattr_is_not_asked_for_a_stored_name(saved: Any) -> None:
    module = saved("called = []\ndef __getattr__(name):\n    called.append(name)\n    raise AttributeError(name)\n")
    with pytest.raises(StoredValueUnreadable):
        DEFAULT.decode("tagged", '{"$type":"dataclass","class":"agent_resume_test_saved:X","value":{}}')
    assert module.called == []


# Codecs


class Matrix:
    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.rows == self.rows  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


class SubMatrix(Matrix):
    pass


MATRIX = ValueCodec("matrix", Matrix, lambda value: tuple(value.rows), lambda rows: Matrix(list(rows)))


def test_a_codec_keeps_its_type_and_only_that() -> None:
    codec = Codec([MATRIX])
    value = {"m": Matrix([[1, 2]]), "n": (Matrix([]),)}
    assert codec.settle(value)[1] == value
    encoded = codec.encode(value)
    with pytest.raises(StoredValueUnreadable, match="'matrix'"):
        DEFAULT.decode(encoded.format, encoded.text)
    with pytest.raises(OutputNotStorable, match="would give back a"):
        codec.encode(SubMatrix([]))
    assert codec.digest(value) == codec.digest({"n": (Matrix([]),), "m": Matrix([[1, 2]])})


def test_a_codec_that_fails_or_does_nothing_is_told() -> None:
    with pytest.raises(OutputNotStorable, match=r"\$\[0\].*ZeroDivisionError"):
        Codec([ValueCodec("m", Matrix, lambda value: 1 // 0, Matrix)]).encode([Matrix([])])
    with pytest.raises(OutputNotStorable, match="gave it back as it was"):
        Codec([ValueCodec("m", Matrix, lambda value: value, Matrix)]).encode(Matrix([]))
    broken = Codec([ValueCodec("m", Matrix, lambda value: [], lambda data: 1 // 0)])
    for value, place in ((Matrix([]), "$"), ({"items": [(1, Matrix([]))], "n": 1}, "$.items[0][1]")):
        with pytest.raises(OutputNotStorable, match="'m'.*could not be given back.*decode") as caught:
            broken.settle(value)
        assert caught.value.path == place


def test_a_codec_may_replace_what_is_built_in_but_not_plain_json() -> None:
    codec = Codec([ValueCodec("day", dt.date, lambda day: day.toordinal(), dt.date.fromordinal)])
    assert "codec" in codec.encode(dt.date(2026, 1, 1)).text
    assert codec.settle([dt.date(2026, 1, 1)])[1] == [dt.date(2026, 1, 1)]
    with pytest.raises(ValueError, match="plain JSON"):
        Codec([ValueCodec("d", dict, list, dict)])
    with pytest.raises(ValueError, match="two codecs"):
        Codec([MATRIX, MATRIX])
    with pytest.raises(TypeError, match="ValueCodec"):
        Codec(["json"])
    with pytest.raises(ValueError, match="surrogate"):
        Codec([ValueCodec("\udc81", Matrix, list, Matrix)])
    for size in (None, "5", 5.0):
        with pytest.raises(TypeError, match="in bytes"):
            Codec(max_bytes=size)  # type: ignore[arg-type]


def test_pickle_is_used_only_where_it_was_asked_for_by_name() -> None:
    with pytest.raises(OutputNotStorable):
        DEFAULT.encode(Matrix([]))
    assert Codec("pickle").encode(Matrix([])) == Codec(["pickle"]).encode(Matrix([]))
    codec = Codec(["pickle"])
    value = {"m": Matrix([[1]]), "n": [(Matrix([]),)], "plain": 1}
    encoded, back = codec.settle(value)
    assert back == value
    with pytest.raises(StoredValueUnreadable, match="pickle"):
        DEFAULT.decode(encoded.format, encoded.text)
    assert codec.encode({"a": 1}).format == "json"
    assert "pickle" not in codec.encode(Base(1)).text
    with pytest.raises(OutputNotStorable, match=r"\$\.m: _thread.lock"):
        codec.encode({"m": threading.Lock()})
    only = Codec(pickle_codec(Matrix))
    assert only.settle([Matrix([[2]])])[1] == [Matrix([[2]])]


def test_arrays_and_frames_say_how_to_keep_them() -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not needed for anything else")
    for value, path, kind in (
        ({"n": numpy.int64(3)}, "$.n", "numpy.int64"),
        ([numpy.float64(1.0)], "$[0]", "numpy.float64"),
        (numpy.zeros(3), "$", "numpy.ndarray"),
        ({numpy.str_("k"): 1}, "$[<numpy.str_>]", "numpy.str_"),
        (numpy.bool_(True), "$", "numpy.bool"),
        (numpy.datetime64("2026-01-01"), "$", "numpy.datetime64"),
    ):
        with pytest.raises(OutputNotStorable, match="ValueCodec") as caught:
            DEFAULT.encode(value)
        assert (caught.value.path, caught.value.type) == (path, kind)
    codec = Codec(
        [
            ValueCodec(
                "ndarray", numpy.ndarray, lambda a: [a.dtype.str, a.tolist()], lambda v: numpy.array(v[1], dtype=v[0])
            ),
        ]
    )
    array = numpy.array([[1, 2], [3, 4]], dtype="int16")
    back = codec.settle({"a": array})[1]["a"]
    assert back.dtype == array.dtype
    assert (back == array).all()


def test_frames_say_how_to_keep_them() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not needed for anything else")
    for value in (pandas.DataFrame({"a": [1]}), pandas.Series([1]), pandas.Timestamp("2026-01-01")):
        with pytest.raises(OutputNotStorable, match="ValueCodec"):
            DEFAULT.encode(value)
