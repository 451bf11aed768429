/* Members of a team on memory nodes. Machines are made up in hwloc's words; none with several nodes
 * is needed, and none is used. */
#include "tests/test.h"

#include "base/cpu.h"
#include "base/team.h"
#include "machine/place.h"

#include <sched.h>

static void expect_nodes(const char *machine, uint32_t members, const char *nodes) {
    struct place *p = place_open(members, machine);
    assert_non_null(p);
    char got[128] = "";
    for (uint32_t i = 0; i < members; i++)
        got[i] = (char)('0' + place_node_of(p, i));
    if (strcmp(got, nodes) != 0)
        fail_msg("%u members on %s: nodes %s, not %s", members, machine, got, nodes);
    place_close(p);
}

static void members_take_nodes_in_order_and_in_proportion_to_cores(void **state) {
    expect_nodes("numa:2 core:4 pu:1", 8, "00001111");
    expect_nodes("numa:2 core:4 pu:2", 8, "00001111");
    expect_nodes("numa:2 core:4 pu:1", 4, "0011");
    expect_nodes("numa:2 core:4 pu:1", 2, "01");
    expect_nodes("numa:2 core:4 pu:1", 16, "0000000011111111");
    expect_nodes("package:2 numa:2 core:2 pu:1", 8, "00112233");
    expect_nodes("package:2 numa:2 core:2 pu:1", 4, "0123");
    expect_nodes("numa:1 core:4 pu:2", 4, "0000");
    expect_nodes("package:2 core:4 pu:1", 4, "0000");
}

static void uneven_nodes_get_uneven_shares(void **state) {
    uint32_t node[12];
    place_share((uint32_t[]){6, 2}, 2, node, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(node[i], i >= 6);
    place_share((uint32_t[]){1, 1, 10}, 3, node, 12);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(node[i], i < 2 ? i : 2);
    place_share((uint32_t[]){6, 2}, 2, node, 1);
    assert_int_equal(node[0], 0);
}

static void only_machines_with_several_nodes_of_cores_place_anything(void **state) {
    static const struct {
        const char *machine;
        uint32_t nodes;
    } cases[] = {
        {"numa:1 core:4 pu:1", 1},
        {"package:2 core:4 pu:2", 1},
        {"numa:2 core:4 pu:1", 2},
        {"package:2 numa:4 core:2 pu:2", 8},
        {"package:2 [numa] [numa] core:4 pu:1", 2}, /* two kinds of memory beside the same cores */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct place *p = place_open(4, cases[i].machine);
        assert_non_null(p);
        if (place_nodes(p) != cases[i].nodes)
            fail_msg("%s: %u nodes", cases[i].machine, place_nodes(p));
        place_close(p);
    }
    assert_null(place_open(4, "no machine at all"));
    assert_int_equal(place_nodes(NULL), 1);
    assert_int_equal(place_node_of(NULL, 3), 0);
    assert_true(place_spread(NULL, NULL, 0));
}

struct seen {
    struct place *place;
    cpu_set_t before[2], after[2];
};

static void bind_and_look(void *arg, uint32_t member) {
    struct seen *s = arg;
    sched_getaffinity(0, sizeof s->before[member], &s->before[member]);
    place_member(s->place, member);
    sched_getaffinity(0, sizeof s->after[member], &s->after[member]);
    sched_setaffinity(0, sizeof s->before[member], &s->before[member]);
}

static void one_node_leaves_everybody_where_they_were(void **state) {
    struct seen s = {.place = place_open(2, "numa:1 core:2 pu:1")};
    struct team *team = team_open(2);
    team_run(team, bind_and_look, &s);
    for (int i = 0; i < 2; i++)
        assert_true(CPU_EQUAL(&s.before[i], &s.after[i]));
    static unsigned char memory[1 << 16];
    assert_true(place_spread(s.place, memory, sizeof memory));
    team_close(team);
    place_close(s.place);
}

/* The first two cores declared to be two nodes: binding is real, the nodes are not. */
static void each_member_is_kept_on_the_cores_of_its_node(void **state) {
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (!CPU_ISSET(0, &all) || !CPU_ISSET(1, &all))
        return;
    setenv("HWLOC_THISSYSTEM", "1", 1);
    struct seen s = {.place = place_open(2, "numa:2 core:1 pu:1")};
    unsetenv("HWLOC_THISSYSTEM");
    assert_non_null(s.place);
    assert_int_equal(place_nodes(s.place), 2);
    struct team *team = team_open(2);
    team_run(team, bind_and_look, &s);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(CPU_COUNT(&s.after[i]), 1);
        assert_true(CPU_ISSET(i, &s.after[i]));
    }
    team_close(team);
    place_close(s.place);
}

/* Cores that taskset took away are not there. */
static void cores_this_process_may_not_use_do_not_count(void **state) {
    cpu_set_t all, first;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (!CPU_ISSET(0, &all) || !CPU_ISSET(1, &all))
        return;
    CPU_ZERO(&first);
    CPU_SET(1, &first);
    assert_int_equal(sched_setaffinity(0, sizeof first, &first), 0);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    struct place *p = place_open(2, "numa:2 core:1 pu:1");
    unsetenv("HWLOC_THISSYSTEM");
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_non_null(p);
    assert_int_equal(place_nodes(p), 1);
    place_close(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_take_nodes_in_order_and_in_proportion_to_cores),
        cmocka_unit_test(uneven_nodes_get_uneven_shares),
        cmocka_unit_test(only_machines_with_several_nodes_of_cores_place_anything),
        cmocka_unit_test(one_node_leaves_everybody_where_they_were),
        cmocka_unit_test(each_member_is_kept_on_the_cores_of_its_node),
        cmocka_unit_test(cores_this_process_may_not_use_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
