# SPDX-License-Identifier: Apache-2.0
"""What clients see while the picker is killed, frozen, drained or replaced."""
import json
import os
import signal
import subprocess
import threading
import time

from rig import ENVOY, MODEL, PENSTOCK, Envoy, Load, Picker, Raw, case, chat, poll, post, tally


def statuses(seen):
    return {s[2] for s in seen}


def both_loads(rig):
    return Load(rig.closed.addr), Load(rig.open.addr)


def settled(rig):
    for envoy in (rig.closed, rig.open):
        poll("Envoy sees the picker", envoy.picker_up)
        poll("a request passes", lambda: post(envoy.addr, chat())[0] == 200)


@case
def picker_killed(rig):
    """SIGKILL under load: fail-close answers 500, fail-open picks by itself."""
    settled(rig)
    closed, opened = both_loads(rig)
    time.sleep(1)
    t0 = time.monotonic()
    rig.picker.stop(signal.SIGKILL)
    dead = time.monotonic()
    poll("both Envoys noticed", lambda: not rig.closed.picker_up() and not rig.open.picker_up())
    noticed = time.monotonic()
    time.sleep(1.5)
    t1 = time.monotonic()
    rig.picker.start()
    settled(rig)
    back = time.monotonic()
    time.sleep(1)
    closed.end()
    opened.end()
    for load in (closed, opened):
        assert statuses(load.within(0, t0)) == {200}, "before: " + tally(load.within(0, t0))
        assert statuses(load.between(back, back + 60)) == {200}, "after: " + tally(load.between(back, back + 60))
    down = closed.within(dead, t1)
    assert statuses(down) == {500}, "fail-close while it is down: " + tally(down)
    assert max(s[1] - s[0] for s in closed.between(dead, t1)) < 3, "fail-close must not hang"
    gap, after = opened.between(t0, noticed), opened.within(noticed + 0.2, t1)
    assert after and statuses(after) == {200}, "fail-open while it is down: " + tally(after)
    assert statuses(gap) <= {200, 500}, "fail-open until Envoy noticed: " + tally(gap)
    return (f"noticed after {noticed - t0:.1f} s; fail-close {tally(down)}; fail-open {tally(gap)} until then, "
            f"{tally(after)} from then on")


@case
def picker_down_and_spoofing(rig):
    """With the picker down and fail-open a client still cannot name its endpoint."""
    rig.picker.stop(signal.SIGKILL)
    try:
        poll("Envoy noticed", lambda: not rig.open.picker_up())
        hit = len(rig.outsider.requests)
        for _ in range(10):
            h = {"x-gateway-destination-endpoint": rig.outsider.addr}
            status, _, _ = post(rig.open.addr, chat(), headers=h)
            # Envoy picks among all members, and half of this test's know only other models.
            assert status in (200, 404), status
        assert len(rig.outsider.requests) == hit, "a client chose its own destination"
        alerts = rig.open.stat("ext_proc.failure_mode_allowed") + rig.open.stat("cluster.picker.upstream_cx_none_healthy")
        assert alerts > 0, "Envoy's own counters do not show that it failed open"
    finally:
        rig.picker.start()
        settled(rig)
    return "10 requests stayed in the pool, and Envoy's counters show it"


@case
def picker_frozen(rig):
    """SIGSTOP under load: what hangs ends by the idle time-out, what is new does not hang."""
    settled(rig)
    closed, opened = both_loads(rig)
    time.sleep(1)
    t0 = time.monotonic()
    rig.picker.proc.p.send_signal(signal.SIGSTOP)
    try:
        poll("both Envoys noticed", lambda: not rig.closed.picker_up() and not rig.open.picker_up())
        noticed = time.monotonic()
        new = both_loads(rig)
        time.sleep(max(1.5, t0 + rig.idle + 1.5 - time.monotonic()))
        for load in new:
            load.end()
        t1 = time.monotonic()
    finally:
        rig.picker.proc.p.send_signal(signal.SIGCONT)
    settled(rig)
    back = time.monotonic()
    time.sleep(1)
    closed.end()
    opened.end()
    hung = [s for s in closed.seen + opened.seen if s[1] - s[0] > 1.5 and s[0] < t1]
    # A few connections are re-established when the process goes on; nothing may
    # have waited for longer than the idle time-out.
    assert hung and statuses(hung) <= {504, 200, 500}, "what hung: " + tally(hung)
    assert max(s[1] - s[0] for s in hung) < rig.idle + 3, "the idle time-out did not end what hung"
    new_closed, new_open = new[0].seen, new[1].seen
    assert new_open and statuses(new_open) == {200}, "fail-open while it is frozen: " + tally(new_open)
    assert new_closed and statuses(new_closed) == {500}, "fail-close while it is frozen: " + tally(new_closed)
    for load in (closed, opened):
        assert statuses(load.between(back, back + 60)) == {200}, "after: " + tally(load.between(back, back + 60))
    return (f"noticed after {noticed - t0:.1f} s; hung: {tally(hung)} after at most {max(s[1] - s[0] for s in hung):.1f} s; "
            f"new: fail-close {tally(new_closed)}, fail-open {tally(new_open)}")


def read_stream(envoy, out, begun, held):
    """Reads a stream to its end and notes how it ended."""
    r = Raw.post(envoy.addr, chat(model="probe", stream=True), path="/v1/chat/completions?sse=40&gap=0.05" + ("&held=20" if held else ""))
    try:
        status = r.head()[0]
        chunks = r.chunks()
        text = next(chunks)
        begun.set()
        text += b"".join(chunks)
        out.append("whole" if status == 200 and b"[DONE]" in text else f"{status}, no end")
    except (ConnectionError, OSError, ValueError) as e:
        out.append(f"cut ({type(e).__name__})")
    finally:
        r.close()


def streams_through(rig, envoys, act, held=True):
    """Starts a stream through each Envoy, acts in their middle, tells how they ended. Where
    they are held none ends before that, however long it takes until all have begun."""
    results, begun = [[] for _ in envoys], [threading.Event() for _ in envoys]
    threads = [threading.Thread(target=read_stream, args=(e, r, b, held)) for e, r, b in zip(envoys, results, begun)]
    for p in rig.probes:
        p.go_on.clear()
    try:
        for t in threads:
            t.start()
        for b in begun:
            assert b.wait(30), "a stream did not begin"
        act()
    finally:
        for p in rig.probes:
            p.go_on.set()
    for t in threads:
        t.join()
    return [r[0] for r in results]


@case
def streams_and_a_dying_picker(rig):
    """A kill cuts what passes through the picker; without response bodies nothing does."""
    settled(rig)
    poll("Envoy sees the picker", rig.blind.picker_up)
    seen, unseen = streams_through(rig, [rig.closed, rig.blind], lambda: rig.picker.stop(signal.SIGKILL))
    rig.picker.start()
    settled(rig)
    assert seen.startswith("cut"), f"with response bodies: {seen}"
    assert unseen == "whole", f"without response bodies: {unseen}"
    return f"with response bodies {seen}, without: {unseen}"


@case
def streams_and_a_short_freeze(rig):
    """A second of silence only delays a stream."""
    settled(rig)

    def freeze():
        rig.picker.proc.p.send_signal(signal.SIGSTOP)
        time.sleep(1)
        rig.picker.proc.p.send_signal(signal.SIGCONT)
    [seen] = streams_through(rig, [rig.closed], freeze, held=False)
    settled(rig)
    assert seen == "whole", seen
    return "whole"


@case
def picker_drained(rig):
    """SIGTERM: the stream that runs is finished, health says no first."""
    settled(rig)
    [seen] = streams_through(rig, [rig.closed], lambda: rig.picker.stop(signal.SIGTERM, wait=False))
    rig.picker.proc.p.wait(timeout=30)
    code = rig.picker.proc.p.returncode
    rig.picker.start()
    settled(rig)
    assert seen == "whole" and code == 0, (seen, code)
    return "stream whole, exit 0"


@case
def rolling_restart(rig):
    """Two pickers, each replaced in turn under load: no request is lost."""
    two = [Picker(rig, rig.config, name) for name in ("picker-a", "picker-b")]
    for p in two:
        p.ready()
    envoy = Envoy(rig, "envoy-two", two, rig.endpoints, "--idle-timeout", f"{rig.idle}s")
    poll("Envoy sees both", lambda: envoy.stat("cluster.picker.membership_healthy") == 2)
    load = Load(envoy.addr, clients=4)
    for p in two:
        p.stop(signal.SIGTERM)
        p.start()
        p.ready()
        poll("Envoy sees both again", lambda: envoy.stat("cluster.picker.membership_healthy") == 2)
    poll("200 requests", lambda: len(load.seen) >= 200)
    load.end()
    picks = [p.metric("penstock_epp_picks_total") for p in two]
    for p in two:
        p.stop(signal.SIGKILL)
    envoy.proc.kill()
    assert statuses(load.seen) == {200}, tally(load.seen)
    return f"{tally(load.seen)}; picks since the restart {picks[0]:.0f} and {picks[1]:.0f}"


@case
def signals_go_stale(rig):
    """Replicas whose metrics stop are picked by own accounting, and the metrics say so."""
    def blind():
        return rig.picker.metric('penstock_epp_picks_total{basis="own_accounting"}')
    settled(rig)
    for _ in range(5):
        assert post(rig.closed.addr, chat(model="probe"))[0] == 200
    before = blind()
    for p in rig.probes:
        p.metrics_fail = True
    try:
        poll("picks without signals", lambda: post(rig.closed.addr, chat(model="probe"))[0] == 200 and blind() > before, every=0.5)
        seen = [(0, 0, post(rig.closed.addr, chat(model="probe"))[0]) for _ in range(20)]
    finally:
        for p in rig.probes:
            p.metrics_fail = False
    assert tally(seen) == "20 x 200", tally(seen)
    assert blind() - before >= 20, blind() - before
    last = {r["server"] for r in rig.probes[0].requests[-10:] + rig.probes[1].requests[-10:]}
    assert len(last) == 2, "own accounting still spreads"
    poll("picks with signals again", lambda: post(rig.closed.addr, chat(model="probe"))[0] == 200
         and rig.picker.metric('penstock_epp_picks_total{basis="signals"}') > 0)
    return "20 of 20 answered, counted as picks by own accounting"


@case
def drill(rig):
    """`penstock drill epp --local` proves both failure modes and the alerts."""
    out = subprocess.run([PENSTOCK, "drill", "epp", "--local", ENVOY, "-o", "json"], capture_output=True, text=True)
    rep = json.loads(out.stdout)
    bad = [f"{s['step']} {s['envoy']}: {s.get('why')}" for s in rep["steps"] if not s["holds"]]
    assert out.returncode == 0 and not bad and len(rep["steps"]) == 6, bad or out.stderr
    assert all("PickerUnhealthy" in s["alerts"] for s in rep["steps"])
    return "stop, freeze and kill hold in both modes, and the alerts fire"


@case
def drill_finds_void_fail_open(rig):
    """An Envoy as people configure it: no health check of the picker. The drill says so."""
    def without_health_check(y):
        head, _, rest = y.partition("    common_lb_config: {healthy_panic_threshold")
        _, _, rest = rest.partition("    circuit_breakers: {thresholds: [{max_connections: 40000, max_requests: 40000, max_pending")
        return head + "    circuit_breakers: {thresholds: [{max_connections: 40000, max_requests: 40000, max_pending" + rest
    picker = Picker(rig, rig.config, "picker-drilled")
    picker.ready()
    envoy = Envoy(rig, "envoy-void", [picker], rig.endpoints, "--fail-open", "--idle-timeout", "3s", edit=without_health_check)
    poll("a request passes", lambda: post(envoy.addr, chat())[0] == 200)
    restart = rig.path("restart.sh")
    with open(restart, "w") as f:
        f.write(f"""while kill -0 $1 2>/dev/null && [ "$(cut -d' ' -f3 /proc/$1/stat)" != Z ]; do sleep 0.1; done
{PENSTOCK} epp --config {rig.config} --epp {picker.addr} --admin {picker.admin} >>{picker.proc.log} 2>&1 </dev/null &
echo $! | tee {rig.path("pid")}
""")
    with open(rig.path("pid"), "w") as f:
        f.write(str(picker.proc.pid))
    try:
        out = subprocess.run([PENSTOCK, "drill", "epp", "--envoy", envoy.addr, "--envoy-admin", envoy.admin, "--fail-open",
                              "--picker-pid", str(picker.proc.pid), "--restart-command", f"sh {restart} $(cat {rig.path('pid')})",
                              "--model", MODEL, "--idle-timeout", "3s", "--limit", "4s", "--watch", "1s", "--yes", "-o", "json"],
                             capture_output=True, text=True)
    finally:
        with open(rig.path("pid")) as f:
            last = int(f.read())
        try:
            os.kill(last, signal.SIGKILL)
        except ProcessLookupError:
            pass
        envoy.proc.kill()
    assert out.returncode == 3, f"exit {out.returncode}: {out.stderr}"
    killed = next(s for s in json.loads(out.stdout)["steps"] if s["step"] == "kill")
    assert not killed["holds"] and "health check" in killed["why"], killed
    return "exit 3: " + killed["why"][:120]
