// What lies between the matrix products of one decode step, for bfloat16 on a CPU. kernels.py compiles and calls it.
//
// bfloat16 numbers are the upper halves of floats. Rows of d numbers are contiguous everywhere.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;

#define WORTH_A_SECOND_THREAD 65536

static inline float widen(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline bf16 narrow(float x) { // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? (bf16)((bits >> 16) | 0x40) : (bf16)rounded;
}

static inline float exponential(float x) { // within 2 units in the last place; 0 below -87
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504088896341f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

// x [rows, width] += y, unless y is null; out = w x / sqrt(mean(x^2) + eps).
void add_norm(float *x, const bf16 *y, const float *w, bf16 *out, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for if (rows * width > WORTH_A_SECOND_THREAD)
    for (int64_t row = 0; row < rows; row++) {
        float *xs = x + row * width, sum = 0;
        if (y)
            for (int64_t i = 0; i < width; i++) xs[i] += widen(y[row * width + i]);
        for (int64_t i = 0; i < width; i++) sum += xs[i] * xs[i];
        float scale = 1.0f / sqrtf(sum / width + eps);
        for (int64_t i = 0; i < width; i++) out[row * width + i] = narrow(xs[i] * scale * w[i]);
    }
}

// gate_up [rows, 2 width] -> out [rows, width] = silu(gate) * up.
void gated(const bf16 *gate_up, bf16 *out, int64_t rows, int64_t width) {
#pragma omp parallel for if (rows * width > WORTH_A_SECOND_THREAD)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = gate_up + 2 * row * width, *up = gate + width;
        for (int64_t i = 0; i < width; i++) {
            float g = widen(gate[i]);
            out[row * width + i] = narrow(g / (1.0f + exponential(-g)) * widen(up[i]));
        }
    }
}

// x [d] rotated, adjacent pairs as complex numbers times turns [d / 2].
static inline void turn(float *out, const bf16 *x, const float *turns, int64_t d) {
    for (int64_t i = 0; i < d; i += 2) {
        float a = widen(x[i]), b = widen(x[i + 1]), c = turns[i], s = turns[i + 1];
        out[i] = a * c - b * s;
        out[i + 1] = a * s + b * c;
    }
}

static inline void scores_of(float *score, int64_t stride, const float *q, int64_t each, const bf16 *keys, int64_t count,
                             int64_t d) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t e = 0; e < each; e++) {
            float sum = 0;
            for (int64_t i = 0; i < d; i++) sum += q[e * d + i] * widen(keys[j * d + i]);
            score[e * stride + j] = sum;
        }
}

static inline void mix(float *out, const float *share, int64_t stride, int64_t each, const bf16 *values, int64_t count,
                       int64_t d) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t e = 0; e < each; e++) {
            float p = share[e * stride + j];
            for (int64_t i = 0; i < d; i++) out[e * d + i] += p * widen(values[j * d + i]);
        }
}

// Everything about one row and one key-value head; each = query heads per key-value head.
static inline __attribute__((always_inline)) void head(
    const bf16 *q, const bf16 *k, const bf16 *v, const float *turns, bf16 *own_k, bf16 *own_v, int64_t t,
    const bf16 *prompt_k, const bf16 *prompt_v, int64_t length, int64_t each, int64_t d, float *scratch, bf16 *out) {
    float *turned = scratch, *result = turned + each * d, *score = result + each * d;
    int64_t count = length + t + 1;
    turn(result, k, turns, d);
    for (int64_t i = 0; i < d; i++) own_k[t * d + i] = narrow(result[i]);
    memcpy(own_v + t * d, v, d * sizeof(bf16));
    for (int64_t e = 0; e < each; e++) turn(turned + e * d, q + e * d, turns, d);
    scores_of(score, count, turned, each, prompt_k, length, d);
    scores_of(score + length, count, turned, each, own_k, t + 1, d);
    for (int64_t e = 0; e < each; e++) {
        float *row = score + e * count, top = row[0], sum = 0;
        for (int64_t j = 1; j < count; j++) top = row[j] > top ? row[j] : top;
        for (int64_t j = 0; j < count; j++) row[j] = exponential(row[j] - top);
        for (int64_t j = 0; j < count; j++) sum += row[j];
        for (int64_t j = 0; j < count; j++) row[j] /= sum;
    }
    memset(result, 0, each * d * sizeof(float));
    mix(result, score, count, each, prompt_v, length, d);
    mix(result, score + length, count, each, own_v, t + 1, d);
    for (int64_t i = 0; i < each * d; i++) out[i] = narrow(result[i]);
}

// One token of every live row of a bundle: rotate, append to the cache, attend to the prompt and to the row's own tokens.
// qkv [rows, heads + 2 kv, d], turns [rows, d], places [rows] in 0 .. groups * per_group, own [groups, kv, per_group,
// capacity, d], prompt [groups, kv, width, d] of which lengths [groups] are real, out [rows, heads, d].
// Returns 0, or 1 where memory is short.
int attend(const bf16 *qkv, const float *turns, const int64_t *places, int64_t rows, bf16 *own_k, bf16 *own_v,
           int64_t capacity, int64_t t, const bf16 *prompt_k, const bf16 *prompt_v, int64_t width, const int64_t *lengths,
           int64_t per_group, int64_t heads, int64_t kv, int64_t d, bf16 *out) {
    int64_t each = heads / kv, all = heads + 2 * kv;
    int failed = 0;
#pragma omp parallel reduction(| : failed)
    {
        float *scratch = malloc(sizeof(float) * each * (2 * d + width + t + 1));
        failed |= scratch == NULL;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < rows * kv; task++) {
            int64_t row = task / kv, h = task % kv, group = places[row] / per_group, place = places[row] % per_group;
            int64_t own = ((group * kv + h) * per_group + place) * capacity * d, prompt = (group * kv + h) * width * d;
            const bf16 *q = qkv + row * all * d;
#define HEAD(D)                                                                                                       \
    head(q + h * each * D, q + (heads + h) * D, q + (heads + kv + h) * D, turns + row * D, own_k + own, own_v + own, t, \
         prompt_k + prompt, prompt_v + prompt, lengths[group], each, D, scratch, out + (row * heads + h * each) * D)
            if (scratch && d == 64)
                HEAD(64);
            else if (scratch && d == 128)
                HEAD(128);
            else if (scratch)
                HEAD(d);
        }
        free(scratch);
    }
    return failed;
}
