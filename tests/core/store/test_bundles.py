from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.contracts.errors import BundleCorrupt, Fenced, NotFound, UsageError
from core.contracts.store import EventDraft, Ownership, RolloutState, SealResult
from core.store import bundle_format
from core.store.bundles import FolderBundles
from core.store.sql import SqlStore
from tests.core.store.helpers import Clock, opened, owned, said

FILES = {"result.json": b'{"reward": 1.0}\n', "agent/stdout.txt": b"hello\n"}


async def scored(store: SqlStore, folder: Path, count: int = 12) -> Ownership:
    own = await owned(store, folder)
    recorder = store.log.recorder(own)
    await recorder.commit(*[said(str(number)) for number in range(count - 1)])
    await recorder.commit(EventDraft("said", {"text": "big " + "é" * 50_000}))
    await store.rollouts.update(own, state=RolloutState.SCORED, reward=1.0)
    return own


async def sealed(store: SqlStore, own: Ownership) -> SealResult:
    record = await store.rollouts.get(own.rollout)
    return await FolderBundles(store).seal(own, record.folder, FILES)


async def test_a_sealed_bundle_proves_itself(store: SqlStore, tmp_path: Path) -> None:
    own = await scored(store, tmp_path)
    result = await sealed(store, own)
    assert result.events == 12
    assert await FolderBundles(store).verify(result.folder) == []
    assert (Path(result.folder) / "agent/stdout.txt").read_bytes() == b"hello\n"
    record = await store.rollouts.get(own.rollout)
    assert (record.sealed, record.folder) == (result.digest, result.folder)
    manifest = (Path(result.folder) / "manifest.json").read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == result.digest
    await store.rollouts.release(own)
    assert await store.fsck() == []
    assert [path.name for path in Path(result.folder).parent.iterdir()] == [record.name]


async def test_sealing_again_changes_no_sealed_segment(store: SqlStore, tmp_path: Path) -> None:
    own = await scored(store, tmp_path)
    first = await sealed(store, own)
    assert await sealed(store, own) == first
    before = (Path(first.folder) / "segments/000001.jsonl").read_bytes()
    await store.log.recorder(own).commit(said("after"))
    second = await sealed(store, own)
    assert second.events == 13
    assert (Path(first.folder) / "segments/000001.jsonl").read_bytes() == before
    assert (Path(first.folder) / "segments/000002.jsonl").exists()
    assert await FolderBundles(store).verify(second.folder) == []


async def test_segments_end_at_five_thousand_events(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    for start in range(0, 5200, 200):
        await recorder.commit(*[said(str(start + number)) for number in range(200)])
    result = await sealed(store, own)
    manifest, _ = bundle_format.read_manifest(Path(result.folder))
    assert [segment.last for segment in manifest.segments] == [5000, 5200]


async def test_a_fenced_owner_cannot_replace_a_bundle(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await scored(store, tmp_path)
    first = await sealed(store, own)
    await store.log.recorder(own).close()
    clock.now += 60
    await store.rollouts.claim(await store.engines.register(), own.rollout)
    with pytest.raises(Fenced):
        await FolderBundles(store).seal(own, first.folder, {"result.json": b"forged"})
    assert (Path(first.folder) / "result.json").read_bytes() == FILES["result.json"]
    assert await FolderBundles(store).verify(first.folder) == []
    assert len(list(Path(first.folder).parent.iterdir())) == 1


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/x", "a/../b", "segments/x", "manifest.json", "", ".", "a//b", "./a", "a\0b"],
)
async def test_a_file_outside_the_bundle_is_refused(
    store: SqlStore, tmp_path: Path, path: str
) -> None:
    own = await owned(store, tmp_path)
    with pytest.raises(UsageError, match="cannot be a file"):
        await FolderBundles(store).seal(own, str(tmp_path / "out"), {path: b""})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    async def make() -> Path:
        folder = tmp_path_factory.mktemp("sealed")
        async with opened(folder / "store") as store:
            return Path((await sealed(store, await scored(store, folder, 30))).folder)

    return asyncio.run(make())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_changed_cut_or_added_byte_is_found(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    assert bundle_format.verify_folder(bundle) == []
    copy = tmp_path_factory.mktemp("copy") / "bundle"
    shutil.copytree(bundle, copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file() and path.name[0] != "m")
    path = data.draw(st.sampled_from(files))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "add", "remove"]))
    if how == "flip":
        changed = bytes([content[place] ^ data.draw(st.integers(1, 255))])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
    elif how == "cut":
        path.write_bytes(content[:place])
    elif how == "add":
        (copy / "segments" / "000009.jsonl").write_bytes(content)
    else:
        path.unlink()
    assert bundle_format.verify_folder(copy)


def test_an_edited_event_is_found_even_when_its_file_hash_was_made_anew(
    bundle: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    segment = copy / "segments/000001.jsonl"
    edited = segment.read_bytes().replace(b'"text":"7"', b'"text":"8"')
    segment.write_bytes(edited)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    for file in manifest["files"]:
        if file["path"] == "segments/000001.jsonl":
            file["sha256"] = hashlib.sha256(edited).hexdigest()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert any("breaks the chain" in problem for problem in bundle_format.verify_folder(copy))


async def test_reindex_rebuilds_a_lost_database_from_bundles(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        own = await scored(store, tmp_path)
        await sealed(store, own)
        await store.rollouts.release(own)
        before = await store.rollouts.get(own.rollout)
        events = await store.log.read(own.rollout)
        whole = await store.log.read(own.rollout, whole=True)
    async with opened(tmp_path / "new") as store:
        assert await store.reindex(tmp_path / "job") == 1
        after = await store.rollouts.get(own.rollout)
        assert await store.log.read(own.rollout) == events
        assert await store.log.read(own.rollout, whole=True) == whole
        assert (after.state, after.reward, after.sealed) == (
            before.state,
            before.reward,
            before.sealed,
        )
        assert (await store.jobs.get("job")).folder == str(tmp_path / "job")
        assert await store.fsck() == []
        assert await store.reindex(tmp_path) == 0
        again = await store.rollouts.claim(await store.engines.register(), own.rollout)
        assert again.term == own.term + 1


async def test_reindex_names_damaged_bundles_and_takes_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        good, bad = await scored(store, tmp_path), await scored(store, tmp_path)
        await sealed(store, good)
        broken = Path((await sealed(store, bad)).folder)
    (broken / "result.json").write_bytes(b"{}")
    async with opened(tmp_path / "new") as store:
        with pytest.raises(BundleCorrupt, match="1 of 2"):
            await store.reindex(tmp_path / "job")
        assert (await store.rollouts.get(good.rollout)).head_seq == 12
        with pytest.raises(NotFound):
            await store.rollouts.get(bad.rollout)
        with pytest.raises(NotFound, match="no sealed rollout"):
            await store.reindex(tmp_path / "empty")


async def test_fsck_says_what_does_not_agree(store: SqlStore, tmp_path: Path) -> None:
    own = await scored(store, tmp_path)
    result = await sealed(store, own)
    await store.log.recorder(own).commit(said("unsealed"))
    await store.rollouts.release(own)
    (Path(result.folder) / "result.json").write_bytes(b"{}")
    (Path(result.folder).parent / ".x.1234.tmp").mkdir()
    orphan = await store.blobs.write(b"nobody names me")
    await store.database.write(
        "update",
        lambda conn: conn.exec_driver_sql("DELETE FROM event WHERE seq = 3").rowcount,
        durable=False,
    )
    text = "\n".join(await store.fsck())
    for expected in (
        "result.json: 2 bytes",
        "sealed with 12 of 13 events",
        "its log holds 12 up to number 13",
        "line 0 has a gap",
        ".x.1234.tmp: left by a crash",
        f"{orphan}: a blob that no event names",
    ):
        assert expected in text
