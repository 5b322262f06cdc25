"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };

  const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  const grid = () => getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
  const colour = (series) => (series.colour === "#000000" ? ink() : series.colour);
  const tokens = (n) => (n >= 1024 && n % 1024 === 0 ? `${n / 1024}k` : String(n));
  const figures = (x, digits = 4) => {
    if (x >= 1e9) return x.toExponential(2);
    return x >= 10 ** (digits - 1) ? Math.round(x).toLocaleString("en") : x.toPrecision(digits); // 67.0 beside 66.5
  };
  const isZero = (x) => Number(x.toFixed(4)) === 0; // as it is shown
  const signed = (x) => (isZero(x) ? "0.0000" : `${x < 0 ? "-" : "+"}${Math.abs(x).toFixed(4)}`);
  const has = (bound) => bound !== null && bound !== undefined;
  const bounded = (v) => has(v.low) && has(v.high);
  const dagger = (v) => (bounded(v) && has(v.over) && v.over !== "documents" ? " †" : ""); // over blocks of windows
  const leans = (v) => { // as tables in Markdown have it: where one side is so much longer, ± would be wrong
    const below = v.mean - v.low, above = v.high - v.mean;
    return Math.max(below, above) > Math.max(1.4 * Math.min(below, above), 1e-6 * Math.abs(v.mean));
  };
  const none = "± -"; // too few documents for an interval
  const around = (v, text, width = text) => {
    if (!bounded(v)) return `${text(v.mean)} ${none}`;
    const half = width((v.high - v.low) / 2), size = (shown) => Math.abs(parseFloat(shown));
    const misleads = (size(text(v.mean)) > size(half)) !== (v.low > 0 || v.high < 0) && !(isZero(v.low) && isZero(v.high));
    const ends = misleads || (leans(v) && v.high - v.low > 1e-4);
    const end = (x) => (x && !size(text(x)) ? x.toExponential(0) : text(x));
    return `${text(v.mean)} ${ends ? `(${end(v.low)} to ${end(v.high)})` : `± ${half}`}${dagger(v)}`;
  };
  const decimals = (x) => (isZero(x) ? 0 : x).toFixed(4);
  const signedCell = (d) => around(d, signed, decimals);
  const shown = () => {
    const boxes = [...document.querySelectorAll("#controls input[name=series]:checked")];
    return boxes.map((box) => data.series[Number(box.value)]);
  };
  const trained = () => [...new Set(shown().map((s) => s.trained).filter(has))].sort((a, b) => a - b);
  const baseline = () => data.series[Number(find("baseline").value)];
  const quantity = () => find("quantity").value;

  /* An estimate of something positive. Half its interval says too little where that is wide: both ends then, since an
     exponentiated interval is not symmetric. */
  function positiveCell(v) {
    if (!v) return "-";
    if (!bounded(v)) return `${figures(v.mean)} ${none}`;
    const half = (v.high - v.low) / 2;
    if (half <= 0.3 * v.mean && !leans(v)) return `${figures(v.mean)} ± ${figures(half, 2)}${dagger(v)}`;
    return `${figures(v.mean)} (${figures(v.low, 3)} to ${figures(v.high, 3)})${dagger(v)}`;
  }

  const minus = (x) => (has(x) ? -x : null);
  const negated = (d) => ({ ...d, mean: -d.mean, low: minus(d.high), high: minus(d.low) });

  /* NLL of a series minus the baseline's, by length. */
  function changes(series, base) {
    if (series.id === base.id) return [];
    const forward = data.pairs[`${base.id}:${series.id}`];
    if (forward) return forward;
    return (data.pairs[`${series.id}:${base.id}`] || []).map(negated);
  }

  /* Perplexity has its interval in the results; loss has its logarithm; bits per byte are in proportion to the loss. */
  function value(row) {
    const kind = quantity();
    const over = row.interval;
    if (kind === "ppl") return { mean: row.ppl, low: row.ppl_low, high: row.ppl_high, over };
    const log = (x) => (x === null ? null : Math.log(x));
    const loss = { mean: row.nll, low: log(row.ppl_low), high: log(row.ppl_high), over };
    if (kind === "nll") return loss;
    if (kind === "tail_nll") return typeof row.tail_nll === "number" ? { mean: row.tail_nll, low: row.tail_low, high: row.tail_high, over } : null;
    if (row.bits_per_byte === null) return null;
    const scale = (x) => (x === null ? null : (x * row.bits_per_byte) / row.nll);
    return { mean: row.bits_per_byte, low: scale(loss.low), high: scale(loss.high), over };
  }

  const rgba = (hex, alpha) => {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
  };

  /* A series with its intervals: bars, or a band, which of many series only the baseline has. */
  function line(series, points, text, bars = false) {
    const hue = colour(series), first = series.id === baseline().id;
    const traces = [];
    const banded = points.filter((p) => bounded(p));
    if (!bars && banded.length > 1 && (first || shown().length <= data.few)) {
      traces.push({
        x: [...banded.map((p) => p.x), ...banded.map((p) => p.x).reverse()],
        y: [...banded.map((p) => p.high), ...banded.map((p) => p.low).reverse()],
        fill: "toself", fillcolor: rgba(hue, 0.13), line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false,
      });
    }
    traces.push({
      x: points.map((p) => p.x), y: points.map((p) => p.mean), name: series.label, mode: "lines+markers",
      text: points.map(text), hovertemplate: "%{text}<extra></extra>", showlegend: false,
      line: { color: hue, dash: series.dash, width: first ? 4 : 2 }, marker: { color: hue, symbol: series.symbol, size: first ? 10 : 8 },
      ...(bars && banded.length ? { error_y: errors(points, hue) } : {}),
    });
    return traces;
  }

  function errors(points, hue) {
    const part = (end) => points.map((p) => (bounded(p) ? end(p) : 0));
    return { type: "data", symmetric: false, array: part((p) => p.high - p.mean), arrayminus: part((p) => p.mean - p.low), color: hue, thickness: 1.5, width: 4 };
  }

  function layout(xTitle, yTitle, ticks, options = {}) {
    const inside = trained().filter((n) => ticks.length && n >= ticks[0] && n <= ticks[ticks.length - 1]);
    const marks = options.noMarks ? [] : inside;
    const axis = { gridcolor: grid(), zerolinecolor: grid(), linecolor: grid(), automargin: true, fixedrange: false };
    return {
      margin: { l: 60, r: 16, t: 28, b: 56 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink(), size: 13 }, hovermode: "closest",
      xaxis: { ...axis, title: { text: xTitle, standoff: 8 }, type: "log", tickvals: spread(ticks), ticktext: spread(ticks).map(tokens) },
      yaxis: { ...axis, title: { text: yTitle, standoff: 12 }, type: options.log ? "log" : "linear", ...(options.log ? logTicks(options.log) : {}) },
      shapes: marks.map((n) => ({ type: "line", x0: n, x1: n, yref: "paper", y0: 0, y1: 1, line: { color: ink(), width: 1, dash: "dash" } })),
      annotations: marks.map((n, i) => ({ x: Math.log10(n), y: 1, yref: "paper", text: `trained at ${tokens(n)}`, showarrow: false, xanchor: "left", yanchor: "top", xshift: 4, yshift: -13 * i, font: { size: 11 } })),
      modebar: { bgcolor: "rgba(0,0,0,0)", color: grid(), activecolor: ink() },
    };
  }

  /* Keeps the axis near the points: a vast interval would flatten them, so its band is cut off at the edge. */
  function keepNear(form, traces, log) {
    const scale = log ? Math.log10 : (v) => v, kept = (t) => t.y.filter((v) => has(v) && (!log || v > 0)).map(scale);
    const points = traces.filter((t) => !t.fill).flatMap(kept), all = traces.flatMap(kept);
    if (!points.length) return form;
    const low = Math.min(...points), high = Math.max(...points), room = log ? Math.log10(4) : high - low + 1;
    if (Math.min(...all) >= low - room && Math.max(...all) <= high + room) return form;
    form.yaxis = { ...form.yaxis, range: [Math.max(Math.min(...all), low - room), Math.min(Math.max(...all), high + room)] };
    return form;
  }

  /* 1, 2, 5, 10, 20, ... over the range of some traces; powers of ten alone where that would be too many. */
  function logTicks(traces) {
    const values = traces.filter((t) => !t.fill).flatMap((t) => t.y).filter((v) => v > 0);
    if (!values.length) return {};
    const ends = [Math.min(...values) / 4, Math.max(...values) * 4].map(Math.log10); // as far as bands are shown
    const low = Math.floor(ends[0]), high = Math.ceil(ends[1]);
    const steps = high - low <= 4 ? [1, 2, 5] : [1];
    const vals = [];
    for (let power = low; power <= high; power++) vals.push(...steps.map((step) => step * 10 ** power));
    return { tickmode: "array", tickvals: vals, ticktext: vals.map((v) => (v >= 1 ? v.toLocaleString("en") : String(v))) };
  }

  /* Labels that stand at least a twelfth of the axis apart. */
  function spread(ticks) {
    const kept = [];
    for (const tick of [...ticks].reverse()) {
      const range = Math.log(ticks[ticks.length - 1] / ticks[0]) || 1;
      if (!kept.length || Math.log(kept[0] / tick) >= range / 12) kept.unshift(tick);
    }
    return kept;
  }

  const lengthsOf = (list) => [...new Set(list.flatMap((s) => s.rows.map((row) => row.length)))].sort((a, b) => a - b);
  const plot = (id, traces, form) => Plotly.react(find(id), traces, form, config);

  function curve() {
    const series = shown(), name = find("quantity").selectedOptions[0].text;
    const traces = series.flatMap((s) => {
      const points = s.rows.map((row) => ({ x: row.length, ...value(row) })).filter((p) => p.mean !== undefined);
      return line(s, points, (p) => `${s.label}<br>${tokens(p.x)} tokens: ${figures(p.mean)}`);
    });
    const log = quantity() === "ppl";
    plot("curve", traces, keepNear(layout("context length (tokens)", name, lengthsOf(series), { log: log && traces }), traces, log));
    table("curve-table", name, series, (row) => positiveCell(value(row)));
  }

  function change() {
    const base = baseline(), series = shown().filter((s) => s.id !== base.id);
    const aside = (n) => 2 ** (0.05 * (n - (series.length - 1) / 2)); // so that bars do not cover each other
    const traces = series.flatMap((s, n) => {
      const points = changes(s, base).map((d) => ({ x: d.length * aside(n), ...d }));
      return line(s, points, (p) => `${s.label}<br>${tokens(Math.round(p.length))} tokens: ${signed(p.mean)}`, true);
    });
    const apart = series.filter((s) => !changes(s, base).length).map((s) => s.label);
    find("change-text").textContent =
      `NLL per token minus that of ${base.label}, paired token by token; below zero is better.` +
      (apart.length ? ` Not on the same tokens, so not compared: ${apart.join(", ")}.` : "");
    const form = layout("context length (tokens)", "nats per token", lengthsOf(series));
    form.yaxis = { ...form.yaxis, zeroline: true, zerolinecolor: ink(), zerolinewidth: 1.5 };
    plot("change", traces, form);
    const cells = new Map(series.map((s) => [s.id, new Map(changes(s, base).map((d) => [d.length, d]))]));
    table("change-table", `change against ${base.label}`, series, (row, s) => {
      const d = cells.get(s.id).get(row.length);
      return d ? signedCell(d) : "-";
    });
  }

  /* The change up to the length that the series' own model was trained at, and minus the change beyond it. Where that
     length is not known, neither. */
  function cost() {
    const base = baseline(), series = shown().filter((s) => s.id !== base.id && changes(s, base).length);
    const rows = series.map((s) => {
      const all = changes(s, base), limit = s.trained ?? NaN;
      const short = all.filter((d) => d.length <= limit).pop(), long = all.filter((d) => d.length > limit).pop();
      const own = short && s.run === base.run && s.paired.find((row) => row.length === short.length);
      const extra = own && own.baseline === base.schedule ? own : {}; // compared with that one, and no other
      return [s.label, short && tokens(short.length), short && marked(short, -1), cell(extra, "kl"), cell(extra, "top1"),
        long && tokens(long.length), long && marked(negated(long), 1)];
    });
    const heads = ["schedule", "short length", "cost (nats)", "mean KL (nats)", "same top-1", "longest", "gain (nats)"];
    fill(find("cost-table"), heads, rows);
  }

  const cell = (pair, name) => {
    if (!has(pair[name])) return "-";
    const text = (x) => (name === "top1" ? `${(100 * x).toFixed(2)}%` : decimals(x));
    return around({ mean: pair[name], low: pair[`${name}_low`], high: pair[`${name}_high`], over: pair.interval }, text);
  };

  /* In colour where the interval keeps away from what is shown as zero; `better` is the sign of the better side. */
  function marked(d, better) {
    const sure = bounded(d) && d.low * d.high > 0 && !isZero(d.low) && !isZero(d.high);
    return { text: signedCell(d), kind: sure ? (d.mean * better > 0 ? "better" : "worse") : "" };
  }

  /* Each schedule minus the model as it is, given only its last tokens, on the tokens that have more before them. */
  function truncation() {
    if (!find("truncation")) return;
    const series = shown().filter((s) => s.truncation.length);
    const part = (row) => ({ mean: row.delta_nll, low: row.low, high: row.high, over: row.interval });
    const aside = (n) => 2 ** (0.05 * (n - (series.length - 1) / 2));
    const traces = series.flatMap((s, n) => {
      const points = s.truncation.map((row) => ({ x: row.length * aside(n), at: row.length, ...part(row) }));
      return line(s, points, (p) => `${s.label}<br>${tokens(p.at)} tokens: ${signed(p.mean)}`, true);
    });
    const lengths = [...new Set(series.flatMap((s) => s.truncation.map((row) => row.length)))].sort((a, b) => a - b);
    const form = layout("context length (tokens)", "nats per token", lengths);
    form.yaxis = { ...form.yaxis, zeroline: true, zerolinecolor: ink(), zerolinewidth: 1.5 };
    plot("truncation", traces, keepNear(form, traces, false));
    const rows = series.flatMap((s) => s.truncation.map((row) => [s.label, tokens(row.length), row.nll.toFixed(4),
      row.truncated_nll.toFixed(4), marked(part(row), -1)]));
    fill(find("truncation-table"), ["schedule", "length", "its loss", "truncation's", "difference"], rows);
  }

  function subsets() {
    const section = find("subsets-section");
    section.hidden = !data.series.some((s) => s.repeats.length || s.key_tokens.length);
    if (section.hidden) return;
    const part = (row, mean, low = mean, over = `${low}interval`) =>
      row && has(row[`${mean}ppl`]) ? { mean: row[`${mean}ppl`], low: row[`${low}low`], high: row[`${low}high`], over: row[over] } : null;
    const rows = shown().flatMap((s) => {
      const at = (list, n) => list.find((row) => row.length === n), far = s.repeats.filter((row) => row.far_tokens);
      const lengths = [...new Set([...far, ...s.key_tokens].map((row) => row.length))].sort((a, b) => a - b);
      return lengths.map((n) => [s.label, tokens(n), positiveCell(part(at(far, n), "far_")), positiveCell(part(at(far, n), "other_")),
        positiveCell(part(at(s.key_tokens, n), "", "ppl_", "interval"))]);
    });
    const keys = rows.some((row) => row[4] !== "-"); // nobody asked for them where there are none
    const heads = ["perplexity", "length", "far repeats", "others", "key tokens"];
    fill(find("subsets-table"), keys ? heads : heads.slice(0, 4), keys ? rows : rows.map((row) => row.slice(0, 4)));
  }

  function position() {
    const series = shown().filter((s) => s.bins.length);
    const traces = series.flatMap((s) => {
      const later = s.bins.filter((b) => b.start >= 16), bins = later.length >= 4 ? later : s.bins;
      const points = bins.map((b) => ({ x: Math.sqrt(b.start * b.stop), mean: b.nll, ...b }));
      const name = bins[0].as_at ? `${s.label}, table for ${tokens(bins[0].as_at)}` : s.label;
      return line(s, points, (p) => `${name}<br>positions ${p.start} to ${p.stop - 1}: ${figures(p.mean)} nats`);
    });
    const ends = traces.flatMap((t) => t.x), ticks = [];
    for (let n = 1; ends.length && n <= 2 * Math.max(...ends); n *= 2) if (n >= Math.min(...ends) / 1.5) ticks.push(n);
    plot("position", traces, keepNear(layout("position (tokens before)", "loss (nats per token)", ticks), traces, false));
  }

  /* An axis of pairs has whole numbers alone, however few pairs there are. */
  const ofPairs = (axis, pairs) => ({ ...axis, type: "linear", tickvals: undefined, ticktext: undefined, tick0: 0, dtick: Math.ceil(pairs / 16) });

  function frequency() {
    const section = find("frequency-section");
    const series = shown().filter((s) => s.tables.length);
    section.hidden = !data.series.some((s) => s.tables.length);
    if (section.hidden) return;
    const traces = series.flatMap((s) => s.tables.flatMap((t) => Object.entries(t.layers).map(([layer, table]) => {
      const waves = table.inv_freq.map((f) => (f > 0 ? (2 * Math.PI) / f : null));
      const where = `${layer === "all" ? "" : ` (${layer})`}${s.tables.length > 1 ? ` at ${tokens(t.length)}` : ""}`;
      return {
        x: waves.map((_, i) => i), y: waves, name: s.label + where, mode: "lines+markers", showlegend: false,
        text: waves.map((w, i) => `${s.label}${where}<br>pair ${i}: ${w === null ? "never turns" : figures(w) + " tokens"}`),
        hovertemplate: "%{text}<extra></extra>", line: { color: colour(s), dash: s.dash, width: s.id === baseline().id ? 4 : 1.5 },
        marker: { color: colour(s), symbol: s.symbol, size: 6 },
      };
    })));
    const form = layout("pair", "wavelength (tokens)", [], { log: traces, noMarks: true });
    const pairs = Math.max(1, ...traces.map((t) => t.x.length));
    form.xaxis = ofPairs(form.xaxis, pairs);
    form.shapes = trained().map((n) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: n, y1: n, line: { color: ink(), width: 1, dash: "dash" } }));
    form.annotations = trained().map((n) => ({ x: 0, xref: "paper", y: Math.log10(n), text: `trained at ${tokens(n)}`, showarrow: false, xanchor: "left", yanchor: "bottom", font: { size: 11 } }));
    plot("frequency", traces, form);
  }

  function retrieval() {
    data.retrieval.forEach((map, number) => {
      heat(`accuracy-${number}`, map, {
        value: (row) => row.accuracy, text: percent, low: 0, high: 1, reversed: false, title: "accuracy", tickformat: ".0%",
      });
      const all = data.retrieval.filter((other) => other.run === map.run).flatMap((other) => other.rows);
      const losses = all.map((row) => row.answer_nll).filter(has); // one scale for all schedules of a run
      heat(`answer-nll-${number}`, map, {
        value: (row) => row.answer_nll, text: (x) => x.toFixed(1), low: Math.min(...losses), high: Math.max(...losses) + 1e-6,
        reversed: true, title: "nats", tickformat: "", // bright is good here too
      });
    });
    const rows = data.retrieval.flatMap((map) => map.overall.map((row) => [
      `${map.run}: ${map.schedule}`, tokens(row.length),
      `${percent(row.accuracy)} (${percent(row.accuracy_low)} to ${percent(row.accuracy_high)})`,
      positiveCell({ mean: row.answer_nll, low: row.answer_nll_low, high: row.answer_nll_high }),
    ]));
    if (rows.length) fill(find("retrieval-table"), ["all questions", "length", "accuracy", "answer NLL (nats)"], rows);
  }

  /* Every candidate of a recommendation with Pareto's front, and the finalists with their intervals. */
  function recommendations() {
    data.recommendations.forEach((each, number) => {
      if (each.candidates.length < 2) return;
      front(`front-${number}`, each);
      finalists(`finalists-${number}`, each);
    });
  }

  function front(id, each) {
    const dots = (rows, options) => ({
      x: rows.map((r) => r.delta_short), y: rows.map((r) => r.delta_target), text: rows.map((r) => r.schedule), mode: "markers",
      hovertemplate: "%{text}<br>%{x:+.4f} within, %{y:+.4f} at the target<extra></extra>", ...options,
    });
    const edge = each.candidates.filter((r) => r.front).sort((a, b) => a.delta_short - b.delta_short);
    const others = each.candidates.filter((r) => !r.front), chosen = each.candidates.filter((r) => r.schedule === each.answer.schedule);
    const form = layout(`change within the trained ${tokens(each.trained)} (nats)`, `change at ${tokens(each.target)} (nats)`, [], { noMarks: true });
    form.xaxis = { ...form.xaxis, type: "linear", tickvals: undefined, ticktext: undefined };
    plot(id, [
      dots(others, { name: "candidates", marker: { color: "#999999", size: 7 } }),
      dots(edge, { name: "front", mode: "lines+markers", line: { shape: "hv", width: 1, color: ink() }, marker: { color: "#0072B2", size: 9 } }),
      dots(chosen, { name: "recommended", marker: { symbol: "circle-open", size: 18, color: "#D55E00", line: { width: 3 } } }),
    ], { ...form, showlegend: true });
  }

  function finalists(id, each) {
    const rows = [...each.finalists].reverse(), points = rows.map((r) => ({ mean: r.delta, low: r.low, high: r.high }));
    const form = layout("objective minus the recommended one's (nats)", "", [], { noMarks: true });
    form.xaxis = { ...form.xaxis, type: "linear", tickvals: undefined, ticktext: undefined, zeroline: true };
    form.yaxis = { ...form.yaxis, type: "category" };
    plot(id, [{
      x: rows.map((r) => r.delta), y: rows.map((r) => r.schedule), mode: "markers", marker: { color: "#0072B2", size: 9 },
      error_x: errors(points, "#0072B2"), hovertemplate: "%{y}: %{x:+.4f} nats<extra></extra>", showlegend: false,
    }], form);
  }

  /* What a search divides each pair by, and how the held-out loss of every search falls with the tokens that it spends. */
  const HUES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"];

  function searches() {
    data.searches.forEach((each, number) => {
      const form = plain("pair", "frequency divided by"), pairs = 1 + Math.max(0, ...each.divisors.map((r) => r.pair));
      plot(`divisors-${number}`, divisors(each), { ...form, xaxis: ofPairs(form.xaxis, pairs) });
    });
    const lines = data.searches.map((each, n) => ({
      x: each.history.map((r) => r.tokens), y: each.history.map((r) => r.loss - each.history[0].loss), name: `${each.run}: ${each.method}`,
      mode: "lines+markers", line: { color: HUES[n % HUES.length] }, hovertemplate: "%{x:,} tokens: %{y:+.4f} nats<extra></extra>",
    }));
    if (lines.length) plot("search-losses", lines, plain("tokens spent", "change of the held-out loss (weighted, nats)"));
  }

  function divisors(each) {
    return [...new Set(each.divisors.map((r) => r.layers))].flatMap((layers, n) => {
      const rows = each.divisors.filter((r) => r.layers === layers), of = (key) => ({ x: rows.map((r) => r.pair), y: rows.map((r) => r[key]), mode: "lines+markers" });
      const name = layers === "all" ? "" : `${layers}: `;
      return [
        { ...of("start"), name: name + each.start, line: { color: ink(), dash: "dash" }, marker: { size: 5 } },
        { ...of("found"), name: `${name}found`, line: { color: HUES[(n + 1) % HUES.length] }, marker: { size: 6 } },
      ];
    });
  }

  function plain(x, y) {
    const form = layout(x, y, [], { noMarks: true });
    form.xaxis = { ...form.xaxis, type: "linear", tickvals: undefined, ticktext: undefined };
    return { ...form, showlegend: true };
  }

  const percent = (x) => `${Math.round(100 * x)}%`;

  /* A number in every cell; lengths across, depths or tasks down. */
  function heat(id, map, kind) {
    const lengths = [...new Set(map.rows.map((r) => r.length))].sort((a, b) => a - b);
    const parts = [...new Set(map.rows.map((r) => r.part))];
    const at = (n, d) => map.rows.find((r) => r.length === n && r.part === d);
    const z = parts.map((d) => lengths.map((n) => (at(n, d) ? kind.value(at(n, d)) : null)));
    const text = z.map((row) => row.map((v) => (has(v) ? kind.text(v) : "")));
    const form = layout("context length (tokens)", map.by, []);
    form.margin = { ...form.margin, t: 36, r: 8 }; // room for Plotly's buttons above the map
    const inside = lengths.filter((n) => n <= (map.trained || 0)).length, between = inside && inside < lengths.length;
    if (between) {
      const at = { type: "line", x0: inside - 0.5, x1: inside - 0.5, yref: "paper", y0: 0, y1: 1 };
      form.shapes = [{ ...at, line: { color: "#fff", width: 4 } }, { ...at, line: { color: "#000", width: 1.5, dash: "dash" } }];
    }
    if (map.trained) {
      const said = `${between ? "dashed:" : inside ? "all within the" : "all beyond the"} trained ${between ? "at " : ""}${tokens(map.trained)}`;
      form.annotations = [{ x: 0, xref: "paper", y: 1, yref: "paper", text: said, showarrow: false, xanchor: "left", yanchor: "bottom", font: { size: 11 } }];
    }
    form.xaxis = { ...form.xaxis, type: "category", tickvals: lengths.map(tokens), ticktext: lengths.map(tokens) };
    form.yaxis = { ...form.yaxis, type: "category", autorange: "reversed" };
    plot(id, [{
      type: "heatmap", x: lengths.map(tokens), y: parts, z, text, zmin: kind.low, zmax: kind.high,
      colorscale: "Cividis", reversescale: kind.reversed, texttemplate: "%{text}",
      hovertemplate: "%{x} tokens, %{y}: %{text}<extra></extra>",
      colorbar: { tickformat: kind.tickformat, thickness: 14, title: { text: kind.title, side: "right" } },
    }], form);
  }

  /* One row per series, one column per length. */
  function table(id, corner, series, text) {
    const lengths = lengthsOf(series);
    const rows = series.map((s) => {
      const rowAt = new Map(s.rows.map((row) => [row.length, row]));
      return [s.label, ...lengths.map((n) => (rowAt.has(n) ? text(rowAt.get(n), s) : ""))];
    });
    fill(find(id), [corner, ...lengths.map((n) => n.toLocaleString("en"))], rows);
  }

  function fill(target, heads, rows) {
    const head = document.createElement("thead"), body = document.createElement("tbody");
    head.append(rowOf(heads, true));
    body.append(...rows.map((row) => rowOf(row, false)));
    target.replaceChildren(head, body);
  }

  /* A label may break after a colon, a comma or an equals sign, and nowhere within a word. */
  function breakable(text, isLabel) {
    const parts = isLabel ? text.split(/(?<=[:,=/])/) : [text];
    return parts.flatMap((part, n) => (n ? [document.createElement("wbr"), part] : [part]));
  }

  function rowOf(values, heading) {
    const row = document.createElement("tr");
    row.append(...values.map((v, i) => {
      const made = document.createElement(heading || i === 0 ? "th" : "td");
      if (made.tagName === "TH") made.scope = heading ? "col" : "row";
      made.append(...breakable(String(v?.text ?? v ?? "-"), i === 0));
      if (v?.kind) made.className = v.kind;
      return made;
    }));
    return row;
  }

  function draw() {
    document.querySelectorAll("#controls .swatch line").forEach((each, n) => each.setAttribute("stroke-width", n === baseline().id ? 4 : 2));
    if (data.series.length) [curve, change, cost, truncation, subsets, position, frequency].forEach((part) => part());
    retrieval();
    recommendations();
    searches();
  }

  find("controls")?.addEventListener("change", draw);
  find("controls")?.addEventListener("submit", (event) => event.preventDefault());
  dark.addEventListener("change", draw);
  draw();
})();
