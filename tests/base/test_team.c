/* The thread team: it meets, it sleeps when others are late, and it comes out of that again. */
#include "tests/test.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/team.h"

#include <sched.h>
#include <time.h>

static void rest(long us) {
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

struct sum {
    struct team *team;
    uint64_t part[8];
    uint64_t total[8];
};

static void add_up(void *arg, uint32_t member) {
    struct sum *s = arg;
    uint32_t n = team_threads(s->team);
    for (uint32_t round = 0; round < 50; round++) {
        s->part[member] += member + 1;
        team_barrier(s->team, member);
        uint64_t all = 0;
        for (uint32_t i = 0; i < n; i++)
            all += s->part[i];
        s->total[member] = all;
        team_barrier(s->team, member);
    }
}

static void a_barrier_makes_every_members_writes_visible(void **state) {
    for (uint32_t n = 1; n <= 5; n++) {
        struct sum s = {.team = team_open(n)};
        assert_non_null(s.team);
        for (int run = 0; run < 20; run++)
            team_run(s.team, add_up, &s);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(s.total[i], 20u * 50u * n * (n + 1) / 2);
        team_close(s.team);
    }
}

struct late {
    struct team *team;
    uint32_t barriers;
    uint64_t parked;
};

/* Member 1 comes so late that the others sleep; then barriers follow each other at once. */
static void late_once(void *arg, uint32_t member) {
    struct late *l = arg;
    if (member == 1)
        rest(3000);
    team_barrier(l->team, member);
    if (member == 0)
        l->parked = team_parked(l->team);
    for (uint32_t i = 0; i < l->barriers; i++)
        team_barrier(l->team, member);
    if (member == 0)
        l->parked = team_parked(l->team) - l->parked;
}

/* A sleeper must not make the next one: with polling shorter than a wake-up every barrier below
 * sleeps. Tried often, since other programs may take a core in the midst of it. */
static void one_late_member_does_not_make_every_later_barrier_sleep(void **state) {
    if (cpu_count() < 2)
        return; /* polling would be wrong there, and is not done */
    struct late l = {.team = team_open(2), .barriers = 300};
    assert_non_null(l.team);
    uint64_t least = UINT64_MAX;
    for (double end = clock_seconds() + 30; least > 10 && clock_seconds() < end;) {
        uint64_t before = team_parked(l.team);
        team_run(l.team, late_once, &l);
        assert_true(team_parked(l.team) - before > l.parked); /* somebody slept at the first one */
        least = l.parked < least ? l.parked : least;
    }
    assert_true(least <= 10);
    team_close(l.team);
}

struct crowd {
    struct team *team;
    cpu_set_t core, all;
    uint32_t barriers;
    double seconds;
};

static void meet_on_one_core(void *arg, uint32_t member) {
    struct crowd *c = arg;
    assert_int_equal(sched_setaffinity(0, sizeof c->core, &c->core), 0);
    for (uint32_t i = 0; i < 10; i++) /* until each has been seen there */
        team_barrier(c->team, member);
    double start = clock_seconds();
    for (uint32_t i = 0; i < c->barriers; i++)
        team_barrier(c->team, member);
    if (member == 0)
        c->seconds = clock_seconds() - start;
    assert_int_equal(sched_setaffinity(0, sizeof c->all, &c->all), 0);
}

/* Two members on one core: who polls there keeps the other from coming. Each barrier would take
 * the whole time of polling, and so would thousands of them in every step. */
static void members_that_share_a_core_do_not_poll_for_each_other(void **state) {
    struct crowd c = {.team = team_open(2), .barriers = 2000};
    assert_non_null(c.team);
    assert_int_equal(sched_getaffinity(0, sizeof c.all, &c.all), 0);
    int core = 0;
    while (!CPU_ISSET(core, &c.all))
        core++;
    CPU_ZERO(&c.core);
    CPU_SET(core, &c.core);
    double least = 1e9;
    for (double end = clock_seconds() + 30; least > 0.2 && clock_seconds() < end;) {
        team_run(c.team, meet_on_one_core, &c);
        least = c.seconds < least ? c.seconds : least;
    }
    assert_true(least <= 0.2); /* 100 us a barrier; with polling at least 200 */
    team_close(c.team);
}

struct crew {
    struct team *team;
    cpu_set_t set;
    uint32_t seen[4];        /* how often each member came */
    uint64_t units, present; /* of the last run */
};

static void work_a_while(void *arg, uint32_t member) {
    struct crew *c = arg;
    sched_setaffinity(0, sizeof c->set, &c->set);
    c->seen[member]++;
    for (int i = 0; i < 20; i++) {
        uint32_t visited = 0, from, to, got = 0;
        while (team_claim(c->team, member, 50, &visited, &from, &to))
            got += to - from;
        __atomic_fetch_add(&c->units, got, __ATOMIC_RELAXED);
        for (double end = clock_seconds() + 20e-6; clock_seconds() < end;) {
        }
        team_barrier(c->team, member);
    }
    if (member == 0)
        c->present = team_present(c->team);
}

/* Three members on one core take turns at every meeting. The team shrinks to one, tries more now
 * and then, and whoever takes part, all of the work is done. */
static void a_team_without_cores_becomes_smaller_and_tries_to_grow(void **state) {
    struct crew c = {.team = team_open(3)};
    assert_non_null(c.team);
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int core = 0;
    while (!CPU_ISSET(core, &all))
        core++;
    CPU_SET(core, &c.set);
    uint32_t runs = 0, alone = 0, grown = 0;
    uint64_t before = 3;
    for (double end = clock_seconds() + 30; clock_seconds() < end && (alone < 50 || !grown);) {
        c.units = 0;
        team_run_present(c.team, work_a_while, &c);
        assert_int_equal(c.units, 20 * 50);
        assert_int_equal(c.seen[0], ++runs);
        alone += c.present == 1;
        grown += c.present > before;
        before = c.present;
    }
    assert_true(alone >= 50 && grown > 0);
    assert_true(c.seen[2] <= c.seen[1] && c.seen[1] < c.seen[0]);
    c.units = 0;
    team_run(c.team, work_a_while, &c); /* team_run asks nobody */
    assert_int_equal(c.units, 20 * 50);
    assert_int_equal(c.present, 3);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    team_close(c.team);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_barrier_makes_every_members_writes_visible),
        cmocka_unit_test(one_late_member_does_not_make_every_later_barrier_sleep),
        cmocka_unit_test(members_that_share_a_core_do_not_poll_for_each_other),
        cmocka_unit_test(a_team_without_cores_becomes_smaller_and_tries_to_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
