// The colours of the report (Okabe and Ito, 2008); a test holds this table against report/colours.py.

export const PHASES = {
  forward: "#0072B2",
  loss: "#CC79A7",
  grad_input: "#E69F00",
  grad_weight: "#009E73",
  update: "#56B4E9",
  copy: "#D55E00",
  idle: "#9A9A9A",
};
export const SPARE = ["#8C6BB1", "#B8860B", "#5F9EA0", "#C71585", "#708090"];
export const MACHINES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#9A9A9A"];
export const FRONT = "#D55E00";
