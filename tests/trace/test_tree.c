/* Session trees: who follows whom after what wait, who starts a sub-agent and who waits for it. */
#include "tests/test.h"

#include "tests/trace/clock.h"

#define CALL(t, api, more)                                                                         \
    "{\"t\":" #t ",\"type\":\"n\",\"in\":10,\"out\":1,\"hash_ids\":[],\"api_time\":" #api more "}"
#define AGENT(t, calls)      "{\"t\":" #t ",\"type\":\"subagent\",\"requests\":[" calls "]}"
#define SESSION(id, entries) "{\"id\":\"" id "\",\"requests\":[" entries "]}\n"

static const struct tree_chain *chain(const struct tree *t, uint32_t session, uint32_t i) {
    return &t->chains[t->sessions[session].first_chain + i];
}

static const struct tree_call *call(const struct tree *t, const struct tree_chain *c, uint32_t i) {
    assert_true(i < c->n_calls);
    return &t->calls[c->first + i];
}

static void WE1_a_subagent_is_started_by_the_turn_before_and_awaited_by_the_turn_behind(void **s) {
    struct trace t;
    struct tree tree;
    tree_of_text(
        SESSION("s1",
                CALL(0, 1.5, ",\"think_time\":0") "," CALL(4, 1.0, ",\"think_time\":2.5") "," AGENT(
                    5.2, CALL(0, 0.5, ) "," CALL(
                             2, 1, ",\"think_time\":1.5")) "," CALL(9, 2, ",\"think_time\":4.0")),
        TRACE_WEKA, &t, &tree);
    assert_int_equal(tree.n_chains, 2);
    assert_int_equal(tree.n_calls, 5);
    assert_int_equal(tree.sessions[0].span, 9 * SEC);
    const struct tree_chain *own = chain(&tree, 0, 0), *sub = chain(&tree, 0, 1);
    assert_int_equal(own->agent, -1);
    assert_int_equal(own->n_calls, 3);
    assert_int_equal(call(&tree, own, 0)->wait, 0);
    assert_int_equal(call(&tree, own, 1)->wait, 2500 * MS);
    assert_int_equal(call(&tree, own, 2)->wait, 4000 * MS);
    assert_int_equal(sub->agent, 0);
    assert_int_equal(sub->n_calls, 2);
    assert_ptr_equal(&tree.calls[sub->spawned_by], call(&tree, own, 1));
    assert_ptr_equal(&tree.calls[sub->joined_by], call(&tree, own, 2));
    assert_int_equal(call(&tree, sub, 0)->wait, 200 * MS); /* 5.2 - (4 + 1) */
    assert_int_equal(call(&tree, sub, 1)->wait, 1500 * MS);
    assert_int_equal(call(&tree, own, 1)->n_spawns, 1);
    assert_int_equal(tree.spawns[call(&tree, own, 1)->first_spawn], 1);
    assert_int_equal(call(&tree, own, 2)->n_joins, 1);
    assert_int_equal(tree.joins[call(&tree, own, 2)->first_join], 1);
    assert_int_equal(call(&tree, own, 0)->n_spawns, 0);
    assert_int_equal(call(&tree, own, 0)->n_joins, 0);
    tree_free(&tree);
    trace_free(&t);
}

static void a_subagent_with_no_turn_before_is_dropped_and_one_with_none_behind_runs_on(void **s) {
    struct trace t;
    struct tree tree;
    tree_of_text(SESSION("a", AGENT(0, CALL(0, 1, ) "," CALL(1, 1, )) "," CALL(3, 1, ) "," AGENT(
                                  5, CALL(0, 1, ))) SESSION("b", AGENT(0, CALL(0, 1, )))
                     SESSION("c", CALL(7, 1, )),
                 TRACE_WEKA, &t, &tree);
    assert_int_equal(tree.dropped_agents, 2);
    assert_int_equal(tree.dropped_calls, 3);
    assert_int_equal(tree.sessions[0].dropped_agents, 1);
    assert_int_equal(tree.sessions[0].n_chains, 2);
    const struct tree_chain *sub = chain(&tree, 0, 1);
    assert_int_equal(sub->agent, 1);
    assert_int_equal(sub->joined_by, TREE_NONE);
    assert_int_equal(call(&tree, sub, 0)->wait, 1 * SEC);
    assert_int_equal(tree.sessions[1].n_chains, 0);
    assert_int_equal(tree.sessions[1].dropped_agents, 1);
    assert_int_equal(tree.sessions[2].n_chains, 1);
    assert_int_equal(tree.sessions[2].span, 0);
    assert_int_equal(call(&tree, chain(&tree, 2, 0), 0)->wait, 0);
    tree_free(&tree);
    trace_free(&t);
}

/* 0-3 and 5-6 follow each other; 1-2 and 2.5-4 do; 2.6-9 overlaps both. */
static void overlapping_calls_of_a_subagent_are_parallel_chains(void **s) {
    struct trace t;
    struct tree tree;
    tree_of_text(
        SESSION(
            "a",
            CALL(0, 1, ) "," AGENT(
                2, CALL(0, 3, ) "," CALL(1, 1, ) "," CALL(2.5, 1.5, ",\"think_time\":0.7") "," CALL(
                       2.6, 6.4, ) "," CALL(5, 1, ",\"think_time\":0.25"))),
        TRACE_WEKA, &t, &tree);
    assert_int_equal(tree.n_chains, 4);
    const struct tree_chain *one = chain(&tree, 0, 1), *two = chain(&tree, 0, 2),
                            *three = chain(&tree, 0, 3);
    assert_int_equal(one->n_calls, 1);
    assert_int_equal(two->n_calls, 3); /* 5 follows 4, which fell idle last */
    assert_int_equal(three->n_calls, 1);
    for (uint32_t i = 1; i < 4; i++) {
        assert_int_equal(chain(&tree, 0, i)->spawned_by, 0);
        assert_int_equal(chain(&tree, 0, i)->joined_by, TREE_NONE);
    }
    assert_int_equal(tree.calls[0].n_spawns, 3);
    assert_int_equal(call(&tree, one, 0)->wait, 1 * SEC);
    assert_int_equal(call(&tree, two, 0)->wait, 2 * SEC);
    assert_int_equal(call(&tree, three, 0)->wait, 3600 * MS);
    assert_int_equal(call(&tree, two, 1)->wait, 700 * MS); /* the row before is the call before */
    assert_int_equal(call(&tree, two, 2)->wait, 1 * SEC);  /* it is not: by times, 5 - 4 */
    tree_free(&tree);
    trace_free(&t);
}

static void without_think_time_waits_follow_from_times_and_are_never_negative(void **s) {
    struct trace t;
    struct tree tree;
    tree_of_text(
        "{\"id\":\"a\",\"requests\":[" CALL(0, 1.5, ) "," CALL(1, 1, ) "," CALL(
            5,
            0.5, ) ",{\"t\":9,\"type\":\"n\",\"in\":1,\"out\":1,\"hash_ids\":[]}," CALL(10,
                                                                                        1, ) "]}",
        TRACE_WEKA, &t, &tree);
    static const int64_t want[] = {0, 0, 3 * SEC, 3500 * MS, 1 * SEC}; /* no api_time: 0 */
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(tree.calls[i].wait, want[i]);
    tree_free(&tree);
    trace_free(&t);
}

static void delays_of_other_formats_are_waits(void **s) {
    struct trace t;
    struct tree tree;
    tree_of_text("{\"timestamp\":7000,\"session_id\":\"u\",\"input_length\":5}\n"
                 "{\"timestamp\":1,\"input_length\":5}\n"
                 "{\"delay\":20,\"session_id\":\"u\",\"input_length\":1}\n"
                 "{\"timestamp\":9000,\"session_id\":\"u\",\"input_length\":1}",
                 TRACE_MOONCAKE, &t, &tree);
    assert_int_equal(tree.n_chains, 2);
    assert_int_equal(tree.calls[0].wait, 0);
    assert_int_equal(tree.calls[1].wait, 20 * MS);
    assert_int_equal(tree.calls[2].wait, 1980 * MS);
    assert_int_equal(tree.sessions[0].span, 2 * SEC);
    tree_free(&tree);
    trace_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            WE1_a_subagent_is_started_by_the_turn_before_and_awaited_by_the_turn_behind),
        cmocka_unit_test(
            a_subagent_with_no_turn_before_is_dropped_and_one_with_none_behind_runs_on),
        cmocka_unit_test(overlapping_calls_of_a_subagent_are_parallel_chains),
        cmocka_unit_test(without_think_time_waits_follow_from_times_and_are_never_negative),
        cmocka_unit_test(delays_of_other_formats_are_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
