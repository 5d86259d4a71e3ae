/* A libcublasLt that is played: it answers as its makers document it, counts its calls, and refuses what it is told to.

   Only what h3_kernels.cublaslt calls is here. Products of up to FAKE_MOST multiplications are computed, from the
   layouts and scale modes that it was given, on the CPU; of larger ones nothing is read and nothing is written.
   fake_set tells it what to be: version, algorithms, tiles, stages, workspace, or which call fails with what status. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define NOT_INITIALIZED 1
#define INVALID_VALUE 7
#define NOT_SUPPORTED 15
#define FAKE_MOST (1L << 28)

typedef struct { uint64_t data[8]; } algo_t;                      /* 0 number, 1 tile, 2 stages, 3 split, 4 reduction,
                                                                     5 what only the heuristic sets */
typedef struct { algo_t algo; size_t workspace; int state; float waves; int reserved[4]; } result_t;
typedef struct { int compute, scale, pointer, transa, transb, epilogue, mode[2]; uint64_t scales[2]; } desc_t;
typedef struct { int type; uint64_t rows, cols; int64_t ld; } layout_t;

enum { CREATE, DESTROY, DESC, LAYOUT, HEURISTIC, INIT, CHECK, MATMUL, ALIVE, CALLS };
static long counts[CALLS];
static struct { long version, algorithm, tile, stages, workspace, needs, first, first_stages, second, second_stages, named,
                more; } is;
static struct { long create, heuristic, init, check, matmul, none; } fails;
static long handle_given = 0x5f;
static algo_t last;
static size_t last_workspace;

void fake_reset(void)
{
    memset(counts, 0, sizeof counts);
    memset(&fails, 0, sizeof fails);
    memset(&last, 0, sizeof last);
    is.version = 130400, is.algorithm = 70, is.tile = 20, is.stages = 37, is.workspace = 0, is.needs = 4096;
    is.named = is.more = 0;
    is.first = 66, is.first_stages = 36, is.second = 71, is.second_stages = 36;
}

void fake_set(const char *name, long value)
{
    struct { const char *name; long *place; } places[] = {
        {"version", &is.version}, {"algorithm", &is.algorithm}, {"tile", &is.tile}, {"stages", &is.stages},
        {"workspace", &is.workspace}, {"needs", &is.needs}, {"first", &is.first}, {"first_stages", &is.first_stages},
        {"second", &is.second}, {"second_stages", &is.second_stages}, {"fail_create", &fails.create},
        {"fail_heuristic", &fails.heuristic}, {"fail_init", &fails.init}, {"fail_check", &fails.check},
        {"named", &is.named}, {"more", &is.more}, {"fail_matmul", &fails.matmul}, {"no_candidates", &fails.none},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (!strcmp(name, places[i].name)) { *places[i].place = value; return; }
    abort();
}

long fake_count(const char *name)
{
    const char *names[CALLS] = {"create", "destroy", "descriptor", "layout", "heuristic", "init", "check", "matmul", "alive"};
    for (int i = 0; i < CALLS; i++)
        if (!strcmp(name, names[i])) return counts[i];
    abort();
}

/* Of the last product: 0 number, 1 tile, 2 stages, 3 split, 4 reduction, 5 bytes of workspace. */
long fake_last(int which) { return which == 5 ? (long)last_workspace : (long)last.data[which]; }

size_t cublasLtGetVersion(void) { return (size_t)is.version; }

int cublasLtCreate(void **handle)
{
    counts[CREATE]++;
    if (fails.create) return (int)fails.create;
    *handle = &handle_given;
    return SUCCESS;
}

int cublasLtDestroy(void *handle)
{
    counts[DESTROY]++;
    return handle == &handle_given ? SUCCESS : NOT_INITIALIZED;
}

static void *made(size_t bytes)
{
    counts[ALIVE]++;
    return calloc(1, bytes);
}

static int gone(void *pointer)
{
    counts[ALIVE]--;
    free(pointer);
    return SUCCESS;
}

int cublasLtMatmulDescCreate(desc_t **desc, int compute, int scale)
{
    counts[DESC]++;
    *desc = made(sizeof **desc);
    (*desc)->compute = compute, (*desc)->scale = scale, (*desc)->epilogue = 1;
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(desc_t *desc) { return gone(desc); }

static void *attribute(desc_t *d, int attr, size_t *size)
{
    *size = 4;
    switch (attr) {
    case 0: return &d->compute;
    case 1: return &d->scale;
    case 2: return &d->pointer;
    case 3: return &d->transa;
    case 4: return &d->transb;
    case 7: return &d->epilogue;
    case 17: *size = 8; return &d->scales[0];
    case 18: *size = 8; return &d->scales[1];
    case 31: return &d->mode[0];
    case 32: return &d->mode[1];
    default: return NULL;
    }
}

int cublasLtMatmulDescSetAttribute(desc_t *desc, int attr, const void *value, size_t size)
{
    size_t wanted;
    void *place = attribute(desc, attr, &wanted);
    if (!place || size != wanted || !value) return INVALID_VALUE;
    memcpy(place, value, size);
    return SUCCESS;
}

int cublasLtMatmulDescGetAttribute(desc_t *desc, int attr, void *value, size_t size, size_t *written)
{
    size_t wanted;
    void *place = attribute(desc, attr, &wanted);
    if (!place || size != wanted) return INVALID_VALUE;
    memcpy(value, place, size);
    *written = size;
    return SUCCESS;
}

int cublasLtMatrixLayoutCreate(layout_t **layout, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    counts[LAYOUT]++;
    *layout = made(sizeof **layout);
    **layout = (layout_t){type, rows, cols, ld};
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(layout_t *layout) { return gone(layout); }

int cublasLtMatmulPreferenceCreate(size_t **preference)
{
    *preference = made(sizeof **preference);
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(size_t *preference) { return gone(preference); }

int cublasLtMatmulPreferenceSetAttribute(size_t *preference, int attr, const void *value, size_t size)
{
    if (attr != 1 || size != sizeof *preference) return INVALID_VALUE;
    memcpy(preference, value, size);
    return SUCCESS;
}

/* A weight [K, N] that is transposed, x [K, M] that isn't, alpha on the device, scales wherever their mode wants some. */
static int fits(const desc_t *d, const layout_t *a, const layout_t *b, const layout_t *c)
{
    if (d->compute != 68 || d->scale != 0 || d->pointer != 1 || d->transa != 1 || d->transb != 0 || d->epilogue != 1)
        return NOT_SUPPORTED;
    if (a->rows != b->rows || a->cols != c->rows || b->cols != c->cols) return INVALID_VALUE;
    if (a->ld != (int64_t)a->rows || b->ld != (int64_t)b->rows || c->ld != (int64_t)c->rows) return INVALID_VALUE;
    if (a->type != b->type || (a->type == 33) != (d->mode[0] == 1) || d->mode[0] != d->mode[1]) return NOT_SUPPORTED;
    if (a->type == 33 && (a->rows % 32 || a->cols % 8)) return NOT_SUPPORTED;
    if (a->type != 14 && (!d->scales[0] || !d->scales[1])) return INVALID_VALUE;
    return SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, desc_t *desc, layout_t *a, layout_t *b, layout_t *c, layout_t *d,
                                   size_t *preference, int asked, result_t *results, int *count)
{
    counts[HEURISTIC]++;
    int status = fits(desc, a, b, d);
    if (handle != &handle_given || c != d) return NOT_INITIALIZED;
    if (fails.heuristic || status) return fails.heuristic ? (int)fails.heuristic : status;
    algo_t known = {{is.algorithm, is.tile, is.stages, 1, 0, is.more}};
    algo_t found[2] = {{{is.first, 20, is.first_stages, 1, 0}}, {{is.second, 24, is.second_stages, 1, 0}}};
    *count = 0;
    for (int i = 0; i < 2 && i < asked && !fails.none; i++)
        if ((size_t)is.needs <= *preference) results[(*count)++] = (result_t){found[i], (size_t)is.needs, SUCCESS, 1, {0}};
    if (is.named && *count < asked && (size_t)is.workspace <= *preference)
        results[(*count)++] = (result_t){known, (size_t)is.workspace, SUCCESS, 1, {0}};
    return SUCCESS;
}

int cublasLtMatmulAlgoGetIds(void *handle, int compute, int scale, int a, int b, int c, int d, int asked, int *ids, int *count)
{
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    long known[3] = {is.first, is.second, is.algorithm};
    for (*count = 0; *count < 3 && *count < asked; ++*count) ids[*count] = (int)known[*count];
    return SUCCESS;
}

int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int number, algo_t *algo)
{
    counts[INIT]++;
    if (fails.init) return (int)fails.init;
    if (handle != &handle_given || compute != 68 || scale != 0 || a != b || c != d) return INVALID_VALUE;
    if (number != is.algorithm) return NOT_SUPPORTED;
    *algo = (algo_t){{(uint64_t)number, 0, 0, 1, 0}};
    return SUCCESS;
}

int cublasLtMatmulAlgoCheck(void *handle, desc_t *desc, layout_t *a, layout_t *b, layout_t *c, layout_t *d,
                            const algo_t *algo, result_t *result)
{
    counts[CHECK]++;
    int status = fits(desc, a, b, d);
    if (handle != &handle_given || c != d) return NOT_INITIALIZED;
    if (fails.check || status) return fails.check ? (int)fails.check : status;
    if (algo->data[1] != (uint64_t)is.tile || algo->data[2] != (uint64_t)is.stages || algo->data[3] != 1 ||
        algo->data[5] != (uint64_t)is.more)
        return NOT_SUPPORTED;
    result->workspace = (size_t)is.workspace, result->state = SUCCESS;
    return SUCCESS;
}

int cublasLtMatmulAlgoCapGetAttribute(const algo_t *algo, int attr, void *values, size_t size, size_t *written)
{
    (void)algo;
    uint32_t tiles[2] = {18, (uint32_t)is.tile}, stages[2] = {36, (uint32_t)is.stages}, modes[1] = {3};
    const uint32_t *found = attr == 6 ? tiles : attr == 13 ? stages : attr == 11 ? modes : NULL;
    if (!found) return INVALID_VALUE;
    *written = attr == 11 ? 4 : 8;
    if (size && size != *written) return INVALID_VALUE;
    if (size) memcpy(values, found, size);
    return SUCCESS;
}

static int config(int attr) { return attr == 0 ? 0 : attr == 1 ? 1 : attr == 6 ? 2 : attr == 2 ? 3 : attr == 3 ? 4 : -1; }

int cublasLtMatmulAlgoConfigSetAttribute(algo_t *algo, int attr, const void *value, size_t size)
{
    uint32_t number;
    if (config(attr) < 1 || size != sizeof number) return INVALID_VALUE;
    memcpy(&number, value, size);
    algo->data[config(attr)] = number;
    return SUCCESS;
}

int cublasLtMatmulAlgoConfigGetAttribute(const algo_t *algo, int attr, void *value, size_t size, size_t *written)
{
    uint32_t number;
    if (config(attr) < 0 || size != sizeof number) return INVALID_VALUE;
    number = (uint32_t)algo->data[config(attr)];
    memcpy(value, &number, size);
    *written = size;
    return SUCCESS;
}

static float e4m3(uint8_t bits)
{
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float value = exponent ? ldexpf(1 + mantissa / 8.f, exponent - 7) : ldexpf(mantissa / 8.f, -6);
    return bits & 128 ? -value : value;
}

static float bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, 4);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

/* A matrix of k values a row as numbers; columns of 16 share a scale, which lies in tiles of 128 rows by 4. */
static double *decoded(const void *matrix, int type, const uint8_t *scales, long rows, long k)
{
    static const double values[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    double *made = malloc((size_t)(rows * k) * sizeof *made);
    long tiles = (k / 16 + 3) / 4;
    for (long r = 0; r < rows; r++)
        for (long j = 0; j < k; j++) {
            long i = r * k + j, c = j / 16;
            if (type == 14) made[i] = bf16(((const uint16_t *)matrix)[i]);
            else if (type == 28) made[i] = e4m3(((const uint8_t *)matrix)[i]) * *(const float *)scales;
            else {
                long place = (r / 128 * tiles + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
                int code = ((const uint8_t *)matrix)[i / 2] >> (j % 2 ? 0 : 4) & 15;
                made[i] = (code & 8 ? -values[code & 7] : values[code & 7]) * e4m3(scales[place]);
            }
        }
    return made;
}

int cublasLtMatmul(void *handle, desc_t *desc, const float *alpha, const void *a, layout_t *al, const void *b, layout_t *bl,
                   const float *beta, const void *c, layout_t *cl, void *d, layout_t *dl, const algo_t *algo,
                   void *workspace, size_t bytes, void *stream)
{
    (void)stream;
    counts[MATMUL]++;
    int status = fits(desc, al, bl, dl);
    if (handle != &handle_given || !algo || c != d || cl != dl || *beta != 0) return NOT_INITIALIZED;
    if (fails.matmul || status) return fails.matmul ? (int)fails.matmul : status;
    if (bytes && !workspace) return INVALID_VALUE;
    last = *algo, last_workspace = bytes;
    long k = (long)al->rows, n = (long)al->cols, m = (long)bl->cols;
    if (k * n * m > FAKE_MOST) return SUCCESS;
    double *w = decoded(a, al->type, (const uint8_t *)desc->scales[0], n, k);
    double *x = decoded(b, bl->type, (const uint8_t *)desc->scales[1], m, k);
    for (long i = 0; i < m; i++)
        for (long o = 0; o < n; o++) {
            double sum = 0;
            for (long j = 0; j < k; j++) sum += w[o * k + j] * x[i * k + j];
            float y = (float)sum * *alpha;
            if (dl->type == 0) ((float *)d)[i * n + o] = y;
            else ((uint16_t *)d)[i * n + o] = to_bf16(y);
        }
    free(w), free(x);
    return SUCCESS;
}
