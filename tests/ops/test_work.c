/* How an operation's units are handed out: each to exactly one member, whoever is late. */
#include "tests/test.h"

#include "base/rng.h"
#include "ops/ops.h"

#include <stdatomic.h>
#include <time.h>

enum { MOST_UNITS = 3000, MOST_MEMBERS = 8 };

struct hand_out {
    struct team *team;
    uint32_t units[16], ranges; /* one range of units between two barriers */
    uint64_t seed;              /* of delays; 0: none */
    uint8_t *times;             /* [ranges][MOST_UNITS] how often a unit came */
};

static void delay(const struct hand_out *h, uint32_t member, uint64_t at) {
    uint64_t dice = h->seed ? rng_at(h->seed, member, at) : 1;
    if (dice % 16 == 0) /* as if the core had been taken */
        nanosleep(&(struct timespec){.tv_nsec = (long)(dice / 16 % 300000)}, NULL);
}

static void take_units(void *arg, uint32_t member) {
    struct hand_out *h = arg;
    for (uint32_t range = 0; range < h->ranges; range++) {
        struct work w = {member, team_threads(h->team), NULL, h->team, 0};
        delay(h, member, range);
        for (struct span s; work_next(&w, h->units[range], &s);) {
            assert_true(s.begin < s.end && s.end <= h->units[range]);
            for (uint32_t i = s.begin; i < s.end; i++)
                h->times[range * MOST_UNITS + i]++; /* a race here is a unit given out twice */
            delay(h, member, (uint64_t)range << 32 | s.begin);
        }
        team_barrier(h->team, member);
    }
}

static void every_unit_comes_once_whatever_the_counts_and_delays(void **state) {
    uint8_t *times = malloc(16 * MOST_UNITS);
    assert_non_null(times);
    for (uint32_t members = 1; members <= MOST_MEMBERS; members++) {
        struct hand_out h = {.team = team_open(members), .ranges = 16, .times = times};
        assert_non_null(h.team);
        for (uint64_t round = 0; round < 40; round++) {
            h.seed = round % 4 ? 0 : 77 + round;
            for (uint32_t i = 0; i < 16; i++) {
                uint64_t dice = rng_at(5, round, i);
                h.units[i] = (uint32_t)(dice % 3 == 0 ? dice / 3 % 20 : dice / 3 % MOST_UNITS);
            }
            memset(times, 0, 16 * MOST_UNITS);
            team_run(h.team, take_units, &h);
            for (uint32_t i = 0; i < 16; i++)
                for (uint32_t u = 0; u < MOST_UNITS; u++)
                    if (times[i * MOST_UNITS + u] != (u < h.units[i]))
                        fail_msg("%u members, round %u: unit %u of %u came %u times", members,
                                 (uint32_t)round, u, h.units[i], times[i * MOST_UNITS + u]);
        }
        team_close(h.team);
    }
    free(times);
}

struct absence {
    struct team *team;
    _Atomic bool done;
    uint32_t units[MOST_MEMBERS];
};

static void work_but_for_one(void *arg, uint32_t member) {
    struct absence *a = arg;
    struct work w = {member, team_threads(a->team), NULL, a->team, 0};
    while (member == 1 && !atomic_load(&a->done))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    for (struct span s; work_next(&w, 100, &s);)
        a->units[member] += s.end - s.begin;
    if (member == 0)
        atomic_store(&a->done, true);
}

static void a_member_that_does_not_come_leaves_no_unit_undone(void **state) {
    struct absence a = {.team = team_open(2)};
    assert_non_null(a.team);
    team_run(a.team, work_but_for_one, &a);
    assert_int_equal(a.units[0], 100);
    assert_int_equal(a.units[1], 0);
    team_close(a.team);
}

static void without_a_team_the_share_is_fixed(void **state) {
    for (uint32_t count = 1; count < 5; count++)
        for (uint32_t index = 0; index < count; index++) {
            struct work w = {.index = index, .count = count};
            struct span want = work_span(w, 7), s;
            assert_true(work_next(&w, 7, &s));
            assert_int_equal(s.begin, want.begin);
            assert_int_equal(s.end, want.end);
            assert_false(work_next(&w, 7, &s));
        }
    struct work none = {.index = 0, .count = 2};
    struct span s;
    assert_false(work_next(&none, 1, &s)); /* the one unit is member 1's */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unit_comes_once_whatever_the_counts_and_delays),
        cmocka_unit_test(a_member_that_does_not_come_leaves_no_unit_undone),
        cmocka_unit_test(without_a_team_the_share_is_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
