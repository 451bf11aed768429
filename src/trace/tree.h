/* tree.h: the sessions of a trace as trees of calls that a replay walks: which call follows which,
 * after what wait, and which chains it waits for. Times as recorded; caps and scales are the
 * schedule's. Source: the rules of AgentX replays, docs/bench.md. */
#ifndef WEIR_TRACE_TREE_H
#define WEIR_TRACE_TREE_H

#include "trace/trace.h"

#define TREE_NONE UINT32_MAX

struct tree_call {
    uint32_t request; /* index in trace.requests */
    uint32_t chain;
    uint32_t turn; /* from 0 within the chain */
    /* ns from the end of the call before it in the chain; the first of a spawned chain: from the
     * end of the spawning call; the first of a session: 0. */
    int64_t wait;
    /* It also waits until these chains have ended: tree.joins[first_join ..]. */
    uint32_t first_join, n_joins;
    /* Its end starts these: tree.spawns[first_spawn ..]. */
    uint32_t first_spawn, n_spawns;
};

/* Calls one after the other. The first chain of a session is its own, the others are sub-agents';
 * calls of a sub-agent that overlap are parallel chains. */
struct tree_chain {
    uint32_t session;
    int32_t agent;           /* index in trace.agents; -1: the session's own */
    uint32_t first, n_calls; /* in tree.calls */
    uint32_t spawned_by;     /* a call of the session's own chain; TREE_NONE: its own chain */
    uint32_t joined_by;      /* TREE_NONE: runs in the background; the tree drains when it ends */
};

struct tree_session {
    uint32_t first_chain, n_chains;
    int64_t span; /* from the first to the last call of its own chain, by their recorded starts */
    uint32_t dropped_agents;
};

struct tree {
    const struct trace *trace;
    struct tree_call *calls;
    struct tree_chain *chains;
    struct tree_session *sessions; /* one for each of trace.sessions */
    uint32_t *joins, *spawns;      /* chains */
    uint32_t n_calls, n_chains;
    uint32_t dropped_agents, dropped_calls; /* sub-agents that nothing spawned */
    /* Calls whose recorded think_time, which is their wait, differs by more than a second from what
     * their times say: recorders count it from the last call whose end they know. */
    uint32_t odd_waits;
};

/* `t` must outlive *out. WEIR_NO_MEMORY; *out is empty then. */
weir_status tree_build(const struct trace *t, struct tree *out, weir_error *err);
void tree_free(struct tree *t);

#endif
