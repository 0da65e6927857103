"use strict";
// What each kind of chart looks like: from the data of the page to an option of ECharts. Nothing here touches the page.

const escapeHtml = (text) => echarts.format.encodeHTML(String(text));
const exact = (value) =>
  value == null ? "" : value.toLocaleString("en", { maximumSignificantDigits: 6 });

function brief(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit * (unit === 1e3 ? 10 : 1)) return `${+(value / unit).toPrecision(4)}${letter}`;
  }
  return String(+value.toPrecision(4));
}

function clock(page, seconds) {
  return new Date((page.began + seconds) * 1000).toLocaleString();
}

const RAMP = ["#4e79d9", "#2fb5a9", "#d0b02c", "#e8743b"];

function onRamp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const index = Math.min(Math.floor(at), RAMP.length - 2);
  const parts = (colour) => [1, 3, 5].map((from) => parseInt(colour.slice(from, from + 2), 16));
  const [low, high] = [parts(RAMP[index]), parts(RAMP[index + 1])];
  return `rgb(${low.map((part, i) => Math.round(part + (high[i] - part) * (at - index))).join(",")})`;
}

function range(values) {
  const known = values.filter((value) => value != null);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}

function base(look, more) {
  const { colours } = look;
  return {
    animation: false,
    aria: { enabled: true },
    textStyle: { fontFamily: look.font, color: colours.text },
    tooltip: {
      confine: true, backgroundColor: colours.card, borderColor: colours.line, padding: [8, 12],
      textStyle: { color: colours.text, fontSize: 13 }, extraCssText: "max-width: 90vw; white-space: normal;",
    },
    ...more,
  };
}

function axis(look, more) {
  const { colours } = look;
  return {
    axisLine: { show: false, lineStyle: { color: colours.line } }, axisTick: { show: false },
    axisLabel: { color: colours.soft, fontSize: 11.5, hideOverlap: true, ...more.axisLabel },
    splitLine: { lineStyle: { color: colours.grid } },
    nameTextStyle: { color: colours.soft, fontSize: 12 },
    nameLocation: "middle",
    ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "axisLabel")),
  };
}

function timeAxis(page, look, more = {}) {
  return axis(look, {
    type: "value", name: `time, ${page.unit[1]}`, nameGap: 26, splitLine: { show: false },
    axisLabel: { formatter: brief, showMaxLabel: false },
    min: page.seconds ? 0 : "dataMin", max: page.seconds ? page.seconds / page.unit[0] : "dataMax", ...more,
  });
}

// A legend above a chart, in as many lines as its names need, and how high these are together.
function above(look, names, more = {}) {
  const [icon, font, gap] = [14, 12, 10];
  const room = look.width - (more.tools && !look.narrow ? 60 : 0);
  let [lines, used] = [1, 0];
  for (const name of names) {
    const width = icon + 5 + name.length * font * 0.58 + gap;
    if (used && used + width > room) [lines, used] = [lines + 1, 0];
    used += width;
  }
  const legend = { top: 0, left: -5, width: room, itemGap: gap, itemWidth: icon, itemHeight: 8, data: names,
                   textStyle: { color: look.colours.soft, fontSize: font }, ...more.legend };
  return [legend, lines * (font + gap)];
}

const tools = (look) =>
  look.narrow ? undefined : {
    right: 0, top: -6, itemSize: 12, iconStyle: { borderColor: look.colours.soft },
    feature: {
      dataZoom: { yAxisIndex: "none", title: { zoom: "zoom into a part", back: "zoom back" } },
      restore: { title: "show all" },
    },
  };

// Lines over iterations or time, with the attempts shaded in turn and their ends named.
function curves(data, page, look) {
  const has = (index) => data.series.some((one) => one.points.some((point) => point[index] != null));
  const inTime = data.time_only || (look.over === "seconds" && has(1)) || !has(0);
  const scale = inTime ? page.unit[0] : 1;
  const starts = inTime ? data.marks.map((mark) => mark.seconds[0]) : [];
  const line = (points) => {
    const drawn = [];
    let attempt = 0;
    for (const point of points) {
      const at = point[inTime ? 1 : 0];
      if (at == null) continue;
      const now = starts.filter((start) => start <= at).length;
      if (now !== attempt && drawn.length) drawn.push([at / scale, null]); // nothing ran in between
      attempt = now;
      drawn.push([at / scale, point[2]]);
    }
    return drawn;
  };
  const [least, most] = data.ramp ?? [0, 1];
  const many = data.series.length > 8 || data.ramp;
  const series = data.series.map((one, index) => ({
    type: "line", name: one.name, data: line(one.points), showSymbol: one.points.length === 1, symbol: "circle",
    symbolSize: 5, connectNulls: false,
    lineStyle: { width: many || one.pale ? 1.2 : 1.7, opacity: one.pale ? 0.3 : many ? 0.85 : 1 },
    color: data.ramp
      ? one.colour == null ? look.colours.soft : onRamp(most > least ? (one.colour - least) / (most - least) : 1)
      : look.colours.series[data.series[0].pale ? 0 : index % 8],
  }));
  if (series.length && data.marks.length > 1) Object.assign(series[0], attemptMarks(data, inTime, scale, look));
  const unit = data.y ? ` ${data.y}` : "";
  const named = !many && series.length > 1 && !data.series[0].pale;
  const names = series.map((one) => one.name);
  const [legend, height] = named ? above(look, names, { tools: true, legend: { icon: "rect", itemHeight: 3 } }) : [undefined, 2];
  return base(look, {
    grid: { left: 8, right: 16, top: 22 + height, bottom: 30, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    legend,
    toolbox: tools(look),
    xAxis: inTime
      ? timeAxis(page, look)
      : axis(look, { type: "value", name: "iteration", nameGap: 26, min: "dataMin", max: "dataMax", splitLine: { show: false },
                     axisLabel: { formatter: brief, showMaxLabel: false, showMinLabel: false } }),
    yAxis: axis(look, { type: "value", scale: !data.zero, max: data.top ?? undefined, interval: data.top ? data.top / 4 : undefined, axisLabel: { formatter: brief }, splitNumber: 4 }),
    tooltip: {
      ...base(look, {}).tooltip, trigger: "axis",
      axisPointer: { type: "line", lineStyle: { color: look.colours.soft } },
      formatter: (found) => curveTip(found, inTime, scale, page, unit),
    },
    series,
  });
}

const MOST_IN_TIP = 8;

function curveTip(found, inTime, scale, page, unit) {
  const rows = found.filter((one) => one.value[1] != null).sort((a, b) => b.value[1] - a.value[1]);
  if (!rows.length) return "";
  const at = rows[0].value[0];
  const head = inTime ? clock(page, at * scale) : `iteration ${exact(at)}`;
  const lines = rows.slice(0, MOST_IN_TIP)
    .map((one) => `${one.marker}${escapeHtml(one.seriesName)} <b>${exact(one.value[1])}</b>${escapeHtml(unit)}`);
  if (rows.length > MOST_IN_TIP) lines.push(`and ${rows.length - MOST_IN_TIP} lower ones`);
  return [escapeHtml(head), ...lines].join("<br>");
}

function attemptMarks(data, inTime, scale, look) {
  const [from, to] = range(data.series.flatMap((one) => one.points.map((point) => point[inTime ? 1 : 0])));
  const spans = data.marks.map((mark) => {
    const [start, end] = inTime ? mark.seconds : mark.iterations;
    return [Math.max(start ?? from, from), Math.min(end ?? to, to)];
  });
  const areas = spans.filter((span, index) => index % 2 === 1 && span[0] < span[1])
    .map(([start, end]) => [{ xAxis: start / scale }, { xAxis: end / scale }]);
  let last = -Infinity;
  const lines = [];
  data.marks.forEach((mark, index) => {
    if (!mark.ended) return;
    const at = spans[index][1];
    const apart = at - last > (to - from) * (look.narrow ? 0.25 : 0.14); // labels must not lie on each other
    if (apart) last = at;
    lines.push({ xAxis: at / scale, label: { show: apart, formatter: mark.ended } });
  });
  return {
    markArea: { silent: true, itemStyle: { color: look.colours.shade }, data: areas },
    markLine: {
      silent: true, symbol: "none", lineStyle: { color: look.colours.bad, type: "dashed", width: 1 },
      label: { color: look.colours.bad, fontSize: 11, position: "end", distance: 3 }, data: lines,
    },
  };
}

// A row per node or GPU, a column per stretch of time.
function heat(data, page, look) {
  const [least, most] = data.ramp;
  const width = data.end / data.columns / page.unit[0];
  const cell = (params, api) => {
    const [x, y] = api.coord([api.value(0), api.value(1)]);
    const height = api.size([0, 1])[1];
    const shape = { x, y: y - height / 2, width: api.coord([api.value(0) + width, 0])[0] - x + 0.5, height: height - 0.5 };
    return { type: "rect", shape, style: { fill: onRamp((api.value(2) - least) / (most - least || 1)) } };
  };
  return base(look, {
    grid: { left: 8, right: 12, top: 12, bottom: 30, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    xAxis: timeAxis(page, look),
    yAxis: axis(look, { type: "category", data: data.rows, inverse: true, splitLine: { show: false },
                        axisLabel: { width: look.narrow ? 90 : 160, overflow: "truncate", fontSize: 11 } }),
    tooltip: { ...base(look, {}).tooltip, formatter: (one) =>
      `${escapeHtml(data.rows[one.value[1]])}<br>${escapeHtml(clock(page, one.value[0] * page.unit[0]))}<br>` +
      `<b>${exact(one.value[2])}</b> ${escapeHtml(data.y)}` },
    series: [{ type: "custom", renderItem: cell, clip: true, encode: { x: 0, y: 1 }, progressive: 4000,
               data: data.cells.map(([column, row, value]) => [column * width, row, value]) }],
  });
}

const WORST_FIRST = ["bad", "warn", "busy", "good", "quiet"];

// Marks so near to each other that one would hide the other become one.
function gathered(marks, end) {
  const found = [];
  for (const mark of [...marks].sort((a, b) => a.at - b.at)) {
    const near = found.find((one) => one.lane === mark.lane && mark.at - one.at < end * 0.008);
    if (near) near.all.push(mark);
    else found.push({ ...mark, all: [mark] });
  }
  return found;
}

// Bars for what went on, diamonds for what happened; a lane per node.
function timeline(data, page, look) {
  const { colours } = look;
  const end = Math.max(...data.bars.map((bar) => bar.span[1]), ...data.marks.map((mark) => mark.at), 1);
  const marks = gathered(data.marks, end);
  const tone = (mark) => WORST_FIRST.find((one) => mark.all.some((each) => each.tone === one));
  const bar = (params, api) => {
    const [x, y] = api.coord([api.value(1), api.value(0)]);
    const height = Math.min(api.size([0, 1])[1] * 0.62, 18);
    const item = data.bars[params.dataIndex];
    const width = Math.max(api.coord([api.value(2), api.value(0)])[0] - x, 2);
    const shape = { x, y: y - height / 2, width, height, r: 3 };
    return {
      type: "rect", shape, style: { fill: colours[`${item.tone}Fill`], stroke: colours[item.tone], lineWidth: 1 },
      textContent: { style: { text: width > 14 + 7 * item.label.length ? item.label : "", fill: colours[item.tone], fontSize: 11 } },
      textConfig: { position: "insideLeft", distance: 6 },
    };
  };
  return base(look, {
    grid: { left: 8, right: 16, top: 20, bottom: 30, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    toolbox: tools(look),
    xAxis: timeAxis(page, look, { splitLine: { show: true, lineStyle: { color: colours.grid } } }),
    yAxis: axis(look, { type: "category", data: data.lanes, inverse: true, splitLine: { show: false },
                        axisLabel: { width: look.narrow ? 80 : 220, overflow: "truncate", interval: data.lanes.length > 40 ? "auto" : 0 } }),
    tooltip: { ...base(look, {}).tooltip, trigger: "item" },
    series: [
      {
        type: "custom", renderItem: bar, clip: true, encode: { x: [1, 2], y: 0 },
        data: data.bars.map((one) => [one.lane, one.span[0] / page.unit[0], one.span[1] / page.unit[0]]),
        tooltip: { formatter: ({ dataIndex }) => {
          const one = data.bars[dataIndex];
          return `${escapeHtml(data.lanes[one.lane])}: ${escapeHtml(one.text)}<br>from ${escapeHtml(clock(page, one.span[0]))}`;
        } },
      },
      {
        type: "scatter", symbol: "diamond", symbolSize: 11, z: 5,
        data: marks.map((mark) => ({
          value: [mark.at / page.unit[0], mark.lane],
          itemStyle: { color: colours[tone(mark)], borderColor: colours.card, borderWidth: 1 },
        })),
        tooltip: { formatter: ({ dataIndex }) => marks[dataIndex].all
          .map((each) => `<b>${escapeHtml(each.name)}</b> ${escapeHtml(each.text)}<br>${escapeHtml(clock(page, each.at))}`).join("<br>") },
      },
    ],
  });
}

const shown = (value, of) => (value == null ? null : of.type === "category" ? String(value) : value);

function parameterAxis(of, look, more) {
  const labels = of.type === "category"
    ? { formatter: (text) => (text.length > 16 ? `${text.slice(0, 15)}…` : text), interval: of.categories.length > 12 ? "auto" : 0 }
    : { formatter: brief, hideOverlap: true };
  Object.assign(labels, more.axisLabel);
  return axis(look, { type: of.type, data: of.categories, scale: true, ...more, axisLabel: labels });
}

// A line per run through what it was given to what came of it.
function parallel(data, page, look) {
  const { colours } = look;
  const last = data.axes.length - 1;
  const [least, most] = range(data.rows.map((row) => row[last]));
  const turned = look.narrow && data.axes.length > 3;
  return base(look, {
    parallel: turned
      ? { layout: "vertical", left: 30, right: 30, top: 34, bottom: 34 }
      : { layout: "horizontal", left: 46, right: 60, top: 40, bottom: 24 },
    parallelAxis: data.axes.map((one, dim) => parameterAxis(one, look, {
      dim, name: one.name, nameLocation: turned ? "start" : "end", nameGap: turned ? -2 : 16,
      nameTextStyle: turned
        ? { color: colours.text, fontWeight: 600, align: "left", verticalAlign: "bottom", padding: [0, 0, 12, 4] }
        : { color: colours.text, fontWeight: 600 },
      axisLine: { show: true, lineStyle: { color: colours.line, width: 1.5 } }, splitLine: { show: false },
      z: 10, axisLabel: { backgroundColor: colours.card, padding: [1, 3], borderRadius: 3 },
      areaSelectStyle: { width: 18, borderColor: colours.busy, color: colours.busy, opacity: 0.25 },
    })),
    visualMap: { show: false, dimension: last, min: least, max: most > least ? most : least + 1, inRange: { color: RAMP } },
    tooltip: { ...base(look, {}).tooltip, trigger: "item", formatter: ({ dataIndex }) => runTip(data, dataIndex) },
    series: [{
      type: "parallel", smooth: false, inactiveOpacity: 0.04,
      lineStyle: { width: data.rows.length > 100 ? 1 : 2, opacity: data.rows.length > 100 ? 0.4 : 0.8 },
      data: data.rows.map((row) => row.map((value, index) => shown(value, data.axes[index]))),
    }],
  });
}

function runTip(data, index) {
  const last = data.axes.length - 1;
  return `${escapeHtml(data.labels[index])}<br>${escapeHtml(data.axes[last].name)} <b>${exact(data.rows[index][last])}</b>`;
}

// What came of the runs over one thing that they were given.
function scatter(data, page, look) {
  const last = data.axes.length - 1;
  const of = data.axes[data.x];
  return base(look, {
    grid: { left: 8, right: 20, top: 20, bottom: 30, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    xAxis: parameterAxis(of, look, { name: of.name, nameGap: 26, splitLine: { show: false },
                                     ...(of.type === "value" ? { boundaryGap: ["8%", "8%"] } : {}) }),
    yAxis: axis(look, { type: "value", scale: true, axisLabel: { formatter: brief }, splitNumber: 4 }),
    tooltip: { ...base(look, {}).tooltip, trigger: "item", formatter: ({ dataIndex }) => runTip(data, dataIndex) },
    series: [{
      type: "scatter", symbolSize: data.rows.length > 200 ? 5 : 9, itemStyle: { color: look.colours.series[0], opacity: 0.7 },
      data: data.rows.map((row) => [shown(row[data.x], of), row[last]]),
    }],
  });
}

const DRAWN_BY = { curves, heat, timeline, parallel, scatter };
