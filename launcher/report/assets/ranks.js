"use strict";
// Charts of benchmarks: what more ranks are worth, and what takes their time.

// What so many ranks reach, with the range of the repetitions, and what they would reach if nothing were lost.
function scaling(data, page, look) {
  const { colours } = look;
  const [measured, half] = [colours.series[0], 5];
  const ranks = data.points.map((point) => point[0]);
  const range = (params, api) => {
    const [[x, low], [, high]] = [2, 3].map((dim) => api.coord([api.value(0), api.value(dim)]));
    const pathData = `M${x} ${low}V${high}M${x - half} ${low}h${2 * half}M${x - half} ${high}h${2 * half}`;
    return { type: "path", shape: { pathData }, style: { stroke: measured, lineWidth: 1.4, fill: "none" } };
  };
  const [first, last] = [ranks[0], ranks.at(-1)];
  const room = 0.08 * (last - first || 1);
  const scale = data.log
    ? { type: "log", logBase: 2, min: first / 1.3, max: last * 1.3 }
    : { type: "value", min: first - room, max: last + room };
  const percent = data.y === "%";
  const names = { data: ["measured", { name: data.ideal.name, itemStyle: { opacity: 0 } }] };
  const [legend, height] = above(look, ["measured", data.ideal.name], { legend: names });
  return base(look, {
    grid: { left: 8, right: 20, top: 14 + height, bottom: 30, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    legend,
    xAxis: axis(look, { ...scale, name: "ranks", nameGap: 26, splitLine: { show: false },
                        axisLabel: { customValues: ranks, formatter: brief, hideOverlap: true } }),
    yAxis: axis(look, { type: data.log && !percent ? "log" : "value", splitNumber: 4, axisLabel: { formatter: brief } }),
    tooltip: { ...base(look, {}).tooltip, trigger: "axis", axisPointer: { type: "line", lineStyle: { color: colours.soft } },
               formatter: ([one]) => scalingTip(data, one.dataIndex) },
    series: [
      { type: "line", name: data.ideal.name, data: data.ideal.points, symbol: "none", color: colours.soft,
        lineStyle: { type: "dashed", width: 1.3 } },
      { type: "line", name: "measured", data: data.points.map((point) => point.slice(0, 2)), symbol: "circle", symbolSize: 7,
        color: measured, lineStyle: { width: 1.7 } },
      { type: "custom", name: "range", renderItem: range, silent: true, encode: { x: 0, y: [1, 2, 3] }, data: data.points, z: 1 },
    ],
  });
}

function scalingTip(data, index) {
  const [ranks, median, low, high] = data.points[index];
  const many = data.repetitions[index];
  const spread = many > 1 ? `<br>${exact(low)} to ${exact(high)} in ${many} repetitions` : "";
  return `${ranks} rank${ranks > 1 ? "s" : ""}<br><b>${exact(median)}</b> ${escapeHtml(data.y)}${spread}<br>` +
    `${escapeHtml(data.ideal.name)}: ${exact(data.ideal.points[index][1])}`;
}

// Bars made of parts: what takes the time.
function parts(data, page, look) {
  const { colours } = look;
  const whole = data.labels.map((_, index) => data.series.reduce((sum, one) => sum + (one.values[index] ?? 0), 0));
  const [legend, height] = above(look, data.series.map((one) => one.name));
  return base(look, {
    grid: { left: 8, right: 12, top: 14 + height, bottom: 30, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    legend,
    xAxis: axis(look, { type: "category", data: data.labels, name: data.x, nameGap: 26, splitLine: { show: false } }),
    yAxis: axis(look, { type: "value", splitNumber: 4, axisLabel: { formatter: brief } }),
    tooltip: { ...base(look, {}).tooltip, trigger: "axis", axisPointer: { type: "shadow" }, formatter: (found) =>
      [`${escapeHtml(data.x)} ${escapeHtml(found[0].name)}: <b>${exact(whole[found[0].dataIndex])}</b> ${escapeHtml(data.y)}`,
       ...found.filter((one) => one.value != null).reverse().map((one) =>
         `${one.marker}${escapeHtml(one.seriesName)} ${exact(one.value)} ${escapeHtml(data.y)}, ` +
         `${Math.round(100 * one.value / whole[one.dataIndex])}%`)].join("<br>") },
    series: data.series.map((one) => ({
      type: "bar", stack: "all", name: one.name, data: one.values, color: colours.series[one.colour % 8], barMaxWidth: 46,
    })),
  });
}

Object.assign(DRAWN_BY, { scaling, parts });
