/* api_run.h: the generations of one API request, from engine requests to the last event. */
#ifndef WEIR_SERVE_API_RUN_H
#define WEIR_SERVE_API_RUN_H

#include "serve/api_job.h"
#include "serve/api_reply.h"
#include "serve/chat_request.h"
#include "serve/completion_request.h"
#include "serve/turns_chat.h"

struct run_choice {
    struct api_run *run;
    struct api_choice *choice;
    weir_request *request;  /* NULL: ended */
    uint32_t prompt;        /* which one it answers */
    bool ready, opened;     /* opened: its first chunk was sent */
    uint32_t step, in_step; /* steps taken, tokens taken of the one at hand */
    uint32_t unsent;        /* tokens since the last event */
    bool counted;           /* its prompt's reuse is in the usage */
    struct ids generated;   /* all, where the turn may be recorded */
    double last_token;      /* when its newest token was drawn, as far as polled */
};

/* An endpoint fills job, requests, prompts and envelope in its work function, then submits. */
struct api_run {
    struct api_job job;
    struct chat_request chat;
    struct completion_request completion;
    struct api_sampling *sampling; /* of one of the two */
    struct ids prompt_ids;         /* chat: the rendered prompt */
    struct turns_base base;        /* chat: what its turns start from */
    bool records;                  /* chat: they are kept for replay */
    struct api_prompt *prompts;
    size_t n_prompts;
    struct api_envelope envelope;

    struct run_choice *choices;
    size_t n_choices, live;
    struct api_usage usage;
    char *id;
    struct http_timer *timer;
    bool aborting; /* /abort_request named it */
    bool dirty;
    struct api_run *next, *previous, *next_dirty;
    double arrived, scheduled, first_token, last_token;
    weir_finish worst;
};

struct api_run *api_run_new(bool (*work)(struct api_job *));
/* Checks the model name, submits all choices and answers; takes the run over. */
void api_run_submit(struct api_run *run);
void api_run_free(struct api_job *job);
/* The engine made progress: takes what is ready of all runs. */
void api_runs_advance(struct api *api);

#endif
