/* What phasor bench is asked: models, loads and modes. */
#ifndef PHASOR_CLI_BENCH_QUESTION_H
#define PHASOR_CLI_BENCH_QUESTION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What may choose the plan of a run: docs/bench.md. */
enum bench_mode {
    BENCH_STATIC_TP,
    BENCH_STATIC_EP,
    BENCH_STATIC_EP_DP,
    BENCH_BEST_ATTENTION,
    BENCH_BEST_STATIC,
    BENCH_STATIC_TP_INT4,
    BENCH_HAP,
    BENCH_ADAPTIVE_EXACT,
    BENCH_ADAPTIVE,
    BENCH_MODE_COUNT
};

extern const char *const bench_mode_names[BENCH_MODE_COUNT];

/* Whether somebody has to plan before it can run: that time is a part of the whole. */
bool bench_mode_plans(enum bench_mode mode);

struct bench_scenario {
    int64_t prompt_tokens, output_tokens; /* 1 .. 2^31 - 1 each */
};

#define BENCH_LIST_MAX 32 /* of models, scenarios, and batch sizes */

/* Where the times of runs come from. */
enum bench_clock {
    BENCH_WALL,      /* the clock, on the devices at hand */
    BENCH_MODELLED,  /* a box's: replay of recorded passes, and its figures */
    BENCH_PREDICTED, /* the planner's, of a box whose numbers are drawn anew in each round */
    BENCH_CLOCK_COUNT
};

struct bench_question {
    char *models[BENCH_LIST_MAX];
    struct bench_scenario scenarios[BENCH_LIST_MAX];
    int64_t batch_sizes[BENCH_LIST_MAX]; /* sequences in all */
    int model_count, scenario_count, batch_size_count;
    /* How often routers choose each expert, files of phasor run --routing-counts: of each model
     * one, or none of any. */
    char *routing[BENCH_LIST_MAX];
    int routing_count;
    unsigned modes; /* a bit for each */
    char *devices;  /* as of phasor run */
    char *box;      /* whose times the plans are chosen by: a name or a file */
    enum bench_clock clock;
    int64_t threads; /* 0: one for each core */
    uint64_t seed;   /* of the prompts' token ids; predicted: of what is drawn */
    uint64_t memory; /* of each device, for the planner; 0: what the box says */
};

/* Of all times: "wall", "modelled" or "predicted". */
const char *bench_clock_name(const struct bench_question *question);

/* What a run's time is made of. */
enum bench_time { BENCH_PREFILL, BENCH_DECODE, BENCH_BETWEEN, BENCH_TOTAL, BENCH_TIME_COUNT };

/* Where that comes from: "wall", "replay", "modelled" or "predicted". A total that has a modelled
 * part is modelled. */
const char *bench_time_clock(const struct bench_question *question, enum bench_time time);

/* Of all of them, in words. */
const char *bench_clock_label(const struct bench_question *question);

/* The command line that asks it again, with its words quoted for a shell where they need it: of so
 * many rounds (0: plans only), with results at `path`. The folder of recordings, which the question
 * does not know, is DIR. To be freed; NULL where memory is short. */
char *bench_question_command(const struct bench_question *question, int rounds, const char *path);

/* A word of a command, as a shell takes it. */
void bench_word_put(FILE *file, const char *word);

/* What prompts are made of, or what else is drawn. */
#define BENCH_PROMPTS_BYTES 80
void bench_prompts_words(char out[BENCH_PROMPTS_BYTES], const struct bench_question *question);

/* What columns of a table are of, as they differ by clock. */
const char *bench_planning_words(const struct bench_question *question);
const char *bench_bytes_words(const struct bench_question *question);
const char *bench_memory_words(const struct bench_question *question);

const char *bench_clock_sentence(const struct bench_question *question);

/* What a ratio's interval is of. */
const char *bench_interval_words(const struct bench_question *question);

/* The last part of its path, or of DIR of "DIR/config.json", for people. */
#define BENCH_NAME_BYTES 256
void bench_model_name(char out[BENCH_NAME_BYTES], const struct bench_question *question, int model);

/* "256/64,4096/64", "8,16,32" and "static-tp,adaptive": false where that is not what `text` is, or
 * something stands in it twice. "a.json,b.json": false where it has an empty name. */
bool bench_scenarios_parse(struct bench_question *out, const char *text);
bool bench_batch_sizes_parse(struct bench_question *out, const char *text);
bool bench_modes_parse(struct bench_question *out, const char *text);
bool bench_routing_parse(struct bench_question *out, const char *text);

/* A new object; NULL where memory is short. The other way: false where the object is of no
 * question; `out` is then to be freed all the same. Strings are copies. */
json_t *bench_question_json(const struct bench_question *question);
bool bench_question_read(struct bench_question *out, const json_t *object);
void bench_question_free(struct bench_question *question);

#endif
