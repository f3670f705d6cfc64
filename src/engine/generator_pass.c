/* What a pass computes: chunks of prompts, or a token of each sequence. */
#include "engine/generator_state.h"

static void segment_add(struct generator *generator, int64_t *count, struct sequence *sequence,
                        const int32_t *tokens, int64_t token_count)
{
    generator->of_segment[*count] = sequence;
    generator->segments[(*count)++] = (struct exec_segment){
        .tokens = tokens,
        .token_count = token_count,
        .first_position = sequence->position,
        .pages = sequence->pages,
        .group = sequence->group,
    };
}

/* Goes on behind the pages that others have computed. The page of the last prompt token is never
 * one of them: its logits are needed. */
static void skip_computed(struct generator *generator, struct sequence *sequence)
{
    const struct page_pool *pool = &generator->pools[sequence->group];
    while (sequence->position % KV_PAGE_TOKENS == 0 && prompt_left(sequence) > KV_PAGE_TOKENS &&
           page_pool_is_computed(pool, sequence->pages[sequence->position / KV_PAGE_TOKENS])) {
        sequence->position += KV_PAGE_TOKENS;
        generator->counters.shared_tokens += KV_PAGE_TOKENS;
    }
}

/* Prompt tokens that the sequence computes in this pass, at most `room`: none while another
 * computes the page that it has come to. That other one has come to the same page and may write it,
 * so it waits for nobody, and there is always one that goes on. A page that is written in this pass
 * is not read by others in it: ranks give no order between the two. */
static int64_t chunk_of(struct generator *generator, const struct sequence *sequence, int64_t room)
{
    struct page_pool *pool = &generator->pools[sequence->group];
    int64_t left = prompt_left(sequence), limit = left < room ? left : room, chunk = 0;
    while (chunk < limit) {
        int64_t page = (sequence->position + chunk) / KV_PAGE_TOKENS;
        if (!page_pool_claim(pool, sequence->pages[page], sequence->number))
            break;
        chunk = (page + 1) * KV_PAGE_TOKENS - sequence->position;
    }
    return chunk < limit ? chunk : limit;
}

/* Prompt chunks of a group in order of admission, up to its share of batch_token_max tokens. */
static void collect_prompts(struct generator *generator, int group, int64_t *count)
{
    int64_t room = generator->group_token_max;
    for (int64_t i = 0; i < generator->counters.running && room > 0; i++) {
        struct sequence *sequence = generator->running[i];
        if (sequence->group != group || prompt_left(sequence) <= 0)
            continue;
        skip_computed(generator, sequence);
        int64_t chunk = chunk_of(generator, sequence, room);
        if (chunk == 0)
            continue;
        segment_add(generator, count, sequence, sequence->request.prompt + sequence->position,
                    chunk);
        room -= chunk;
    }
}

static void collect_last_tokens(struct generator *generator, int group, int64_t *count)
{
    for (int64_t i = 0; i < generator->counters.running; i++) {
        struct sequence *sequence = generator->running[i];
        ASSERT(prompt_left(sequence) <= 0); /* see chunk_of: no prompt waits when none goes on */
        if (sequence->group == group)
            segment_add(generator, count, sequence, &sequence->last_token, 1);
    }
}

/* Segments stand in the order of their groups. */
static int64_t collect(struct generator *generator,
                       void (*of_group)(struct generator *generator, int group, int64_t *count))
{
    int64_t count = 0;
    for (int group = 0; group < generator->group_count; group++)
        of_group(generator, group, &count);
    return count;
}

int64_t generator_collect(struct generator *generator, bool *is_prefill)
{
    int64_t count = collect(generator, collect_prompts);
    *is_prefill = count > 0;
    return *is_prefill ? count : collect(generator, collect_last_tokens);
}

/* Tokens of prompts that the pass does not compute. */
static int64_t tokens_left(const struct generator *generator, int64_t segment_count)
{
    int64_t left = 0;
    for (int64_t i = 0; i < generator->counters.running; i++)
        left += prompt_left(generator->running[i]) > 0 ? prompt_left(generator->running[i]) : 0;
    for (int64_t s = 0; s < segment_count; s++)
        left -= generator->segments[s].token_count;
    return left;
}

static bool has_others(const struct generator *generator)
{
    return generator->counters.waiting > 0 && !generator->is_closed;
}

bool generator_is_tail(const struct generator *generator)
{
    int64_t most = 0;
    for (int64_t i = 0; i < generator->counters.running; i++) {
        const struct sequence *sequence = generator->running[i];
        int64_t left = sequence->request.token_count_max - sequence->token_count;
        most = left > most ? left : most;
    }
    return generator->params.in_waves && most <= GENERATOR_TAIL && has_others(generator);
}

/* No prompt is left, and somebody will decode; nor will who surely ends with its prompt leave its
 * room to one that waits. */
bool generator_is_last_prefill(const struct generator *generator, int64_t segment_count)
{
    int64_t decoding = 0, ending;
    if (!generator->params.in_waves || tokens_left(generator, segment_count) > 0)
        return false;
    for (int64_t i = 0; i < generator->counters.running; i++)
        decoding += generator->running[i]->request.token_count_max > 1;
    ending = generator->counters.running - decoding;
    bool can_come =
        has_others(generator) && !generator_is_of_other_wave(generator, generator->first_waiting);
    return decoding > 0 && (ending == 0 || !can_come);
}

/* The last token of a whole context, and every prompt token but the last when the prompt is scored.
 */
int64_t generator_collect_wanted(struct generator *generator, int64_t segment_count)
{
    int64_t wanted = 0;
    int32_t row = 0;
    for (int64_t s = 0; s < segment_count; s++) {
        struct sequence *sequence = generator->of_segment[s];
        const struct exec_segment *segment = &generator->segments[s];
        for (int64_t t = 0; t < segment->token_count; t++, row++) {
            int64_t position = segment->first_position + t;
            bool is_inner = position + 1 < sequence->request.prompt_count;
            if (is_inner ? sequence->request.prompt_logprobs
                         : sequence->request.token_count_max > 0)
                generator->wanted[wanted++] = (struct wanted_row){sequence, row, position};
        }
    }
    return wanted;
}

int64_t generator_advance(struct generator *generator, int64_t segment_count)
{
    int64_t tokens = 0;
    for (int64_t s = 0; s < segment_count; s++) {
        struct sequence *sequence = generator->of_segment[s];
        struct page_pool *pool = &generator->pools[sequence->group];
        int64_t page = sequence->position / KV_PAGE_TOKENS;
        sequence->position += generator->segments[s].token_count;
        tokens += generator->segments[s].token_count;
        for (; page < sequence->position / KV_PAGE_TOKENS; page++)
            page_pool_set_computed(pool, sequence->pages[page]);
    }
    return tokens;
}
